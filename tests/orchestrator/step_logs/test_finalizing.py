"""Moving logs into objects: no byte is lost or doubled, whatever is interrupted, and a log can be read throughout."""

import os
import random
import signal
import subprocess
import sys

import pytest
from django.core.files.storage import storages
from django.utils import timezone

from config.paths import BASE_DIR
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.secrets import masks as job_masks
from orchestrator.services import job_end
from orchestrator.step_logs import finalizing, job_log_writes, objects, tasks
from orchestrator.step_logs.finalizing import begin_attempt, commit_attempt, finalize_log, finalize_step_log
from orchestrator.step_logs.job_log_reads import stored
from orchestrator.step_logs.step_log_reads import LogPosition, locate, read_part, read_step_log
from runtime_jobs.models import DiscardedLogObject, JobStep, LogChunk, StepLog
from tests.factories import WorkerFactory, claimed, submitted
from tests.orchestrator.step_logs.logs import append, close, end, log_of, new_steps, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def storage(settings, tmp_path):
    """A storage of this test."""
    artifacts = settings.STORAGES["artifacts"] | {"OPTIONS": {"location": str(tmp_path)}}
    settings.STORAGES = settings.STORAGES | {"artifacts": artifacts}
    return storages["artifacts"]


@pytest.fixture
def step():
    return new_steps()[0]


def written(step, *chunks):
    first = StepLog.objects.filter(job_id=step.job_id, step=step.index).values_list("next_seq", flat=True).first() or 0
    for seq, chunk in enumerate(chunks, start=first):
        append(step, seq, chunk)


def files(storage, folder=""):
    folders, names = storage.listdir(folder) if storage.exists(folder) or not folder else ([], [])
    return sorted(
        [f"{folder}{name}" for name in names] + [one for name in folders for one in files(storage, f"{folder}{name}/")]
    )


def test_the_log_of_an_ended_step_becomes_an_object(step, storage):
    written(step, b"one\n", b"two\n", b"three\n")
    end(step, timezone.now())
    assert HousekeepingTask.objects.get(kind="finalize_step_log").subject == str(log_of(step).pk)
    assert finalize_step_log(step.pk)
    step.refresh_from_db()
    key = f"jobs/{step.job.pk}/steps/{step.pk}.log"
    assert (step.log_object_key, step.log_byte_count) == (key, 14)
    assert storage.read(key, 0, 99) == b"one\ntwo\nthree\n" == text_of(step)
    assert not LogChunk.objects.exists()
    assert not log_of(step).needs_finalizing
    assert not finalize_step_log(step.pk), "again"
    assert files(storage) == [key]


def test_a_step_without_output_gets_no_object(step, storage):
    end(step, timezone.now())
    assert not finalize_step_log(step.pk)
    append(step, 0, b"x", (b"xy",))
    assert (text_of(step), step.log_object_key, files(storage)) == (b"", None, [])


def test_a_late_chunk_is_added_to_the_object(step, storage, monkeypatch):
    monkeypatch.setattr(job_masks, "masks_of", lambda _: (b"late secret",))
    written(step, b"in time\n")
    end(step, timezone.now())
    finalize_step_log(step.pk)
    first = log_of(step).object_key
    append(step, 7, b"late ", (b"late secret",))
    assert text_of(step) == b"in time\n"
    assert finalize_step_log(step.pk)
    assert text_of(step) == b"in time\nlate " == storage.read(log_of(step).object_key, 0, 99)
    step.refresh_from_db()
    assert (step.log_byte_count, step.log_object_key) == (13, first.replace(".log", ".2.log"))
    assert list(DiscardedLogObject.objects.values_list("name", flat=True)) == [first]


def test_a_chunk_that_arrives_while_the_object_is_written_stays_a_row(step):
    written(step, b"a" * 10)
    end(step, timezone.now())
    key = log_of(step).pk
    attempt = begin_attempt(key)
    append(step, 1, b"b" * 5)
    objects.write_object(attempt.name, [b"a" * 10])
    assert commit_attempt(key, attempt)
    assert text_of(step) == b"a" * 10 + b"b" * 5
    assert log_of(step).needs_finalizing
    assert finalize_log(key)
    assert text_of(step) == b"a" * 10 + b"b" * 5
    assert not LogChunk.objects.exists()


def test_a_process_that_dies_after_the_object_was_written_costs_nothing(step, storage):
    written(step, b"one ", b"two")
    end(step, timezone.now())
    key = log_of(step).pk
    attempt = begin_attempt(key)
    objects.write_object(attempt.name, [b"one two"])
    assert text_of(step) == b"one two"
    assert finalize_log(key)
    assert text_of(step) == b"one two" == storage.read(log_of(step).object_key, 0, 99)
    assert list(DiscardedLogObject.objects.values_list("name", flat=True)) == [attempt.name]


def test_an_attempt_that_another_one_has_overtaken_changes_nothing(step, storage):
    written(step, b"one")
    end(step, timezone.now())
    key = log_of(step).pk
    slow = begin_attempt(key)
    append(step, 1, b" two")
    assert finalize_log(key)
    objects.write_object(slow.name, [b"one"])
    assert not commit_attempt(key, slow)
    assert text_of(step) == b"one two"
    assert storage.read(log_of(step).object_key, 0, 99) == b"one two"
    assert DiscardedLogObject.objects.filter(name=slow.name).exists()


def test_an_attempt_whose_rows_have_gone_into_another_object_ends(step, storage, monkeypatch):
    written(step, b"one")
    end(step, timezone.now())
    key, real = log_of(step).pk, begin_attempt

    def overtaken(log):
        attempt = real(log)
        monkeypatch.setattr(finalizing, "begin_attempt", real)
        assert finalize_log(log)
        return attempt

    monkeypatch.setattr(finalizing, "begin_attempt", overtaken)
    assert not finalize_log(key)
    assert text_of(step) == b"one"
    assert len(files(storage)) == 1


def test_rows_that_are_lost_fail_the_task_loudly(step):
    written(step, b"one", b"two")
    end(step, timezone.now())
    LogChunk.objects.filter(seq=0).delete()
    with pytest.raises(EOFError, match="3 of 6 bytes"):
        finalize_step_log(step.pk)


def test_while_the_storage_is_away_the_log_can_be_read(step, storage, monkeypatch):
    written(step, b"text")
    end(step, timezone.now())

    def refuse(*_, **__):
        raise OSError("no space left on device")

    with monkeypatch.context() as away:
        away.setattr(type(storage), "put", refuse)
        for _ in range(3):
            with pytest.raises(OSError, match="no space"):
                finalize_step_log(step.pk)
            assert text_of(step) == b"text"
    assert finalize_step_log(step.pk)
    assert text_of(step) == b"text"


@pytest.mark.parametrize("seed", range(10))
def test_a_reader_at_any_byte_continues_across_all_of_it(step, seed, monkeypatch):
    monkeypatch.setattr(objects, "BLOCK_BYTES", 3)
    monkeypatch.setattr(finalizing, "BYTES_PER_QUERY", 5)
    chance = random.Random(seed)
    whole, position, found, has_ended = b"", LogPosition(), b"", False
    for seq in range(40):
        match chance.randrange(5):
            case 0 | 1:
                chunk = chance.randbytes(chance.randint(1, 9))
                append(step, seq, chunk)
                if not has_ended and log_of(step).waiting_count:
                    close(step)
                    has_ended = True
                whole += chunk
            case 2 if seq > 10 and not has_ended:
                close(step)
                has_ended = True
            case 3 if has_ended:
                finalize_step_log(step.pk)
            case _:
                part = read_part(step.job_id, step.index, position, limit=chance.randint(1, 8))
                found, position = found + part.data, part.position
                assert whole.startswith(found)
        stored_now = text_of(step)
        start = chance.randint(0, len(stored_now))
        assert b"".join(read_step_log(step, start)) == stored_now[start:]
        assert locate(step.job_id, step.index, start).byte == start
    close(step)
    while (part := read_part(step.job_id, step.index, position)).position != position:
        found, position = found + part.data, part.position
    assert found == whole == text_of(step)


def test_logs_of_jobs_without_steps_are_finalized_when_the_job_has_ended(storage):
    submitted()
    lease = claimed(WorkerFactory()).lease
    for step, seq, chunk in [(0, 0, b"a"), (0, 1, b"b"), (2, 0, b"c")]:
        job_log_writes.append_log(lease_ulid=lease.lease_ulid, worker=lease.worker, seq=seq, chunk=chunk, step=step)
    tasks.request_missing("")
    assert not HousekeepingTask.objects.exists(), "the job runs"
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="worker_error")
    tasks.request_missing("")
    for task in HousekeepingTask.objects.filter(kind="finalize_step_log"):
        tasks.finalize(task.subject)
    assert not LogChunk.objects.exists()
    assert b"".join(stored(lease.job_id)) == b"abc"
    assert len(files(storage)) == 2


def test_a_task_that_waits_for_its_next_attempt_is_not_brought_forward(step):
    written(step, b"text")
    end(step, timezone.now())
    HousekeepingTask.objects.update(due_at=None)
    tasks.request_missing("")
    assert HousekeepingTask.objects.get(kind="finalize_step_log").due_at is None


def test_objects_that_no_log_names_are_deleted_after_a_delay(step, storage, monkeypatch):
    written(step, b"text")
    end(step, timezone.now())
    finalize_step_log(step.pk)
    kept = log_of(step).object_key
    storage.put("jobs/1/steps/left.log", [b"x"])
    for name in (kept, "jobs/1/steps/left.log", "jobs/1/steps/never-written.log"):
        DiscardedLogObject.objects.create(name=name)
    tasks.delete_discarded("")
    assert len(files(storage)) == 2
    monkeypatch.setattr(tasks, "DISCARD_DELAY", tasks.DISCARD_DELAY * 0)
    tasks.delete_discarded("")
    assert files(storage) == [kept]
    assert not DiscardedLogObject.objects.exists()


def test_the_log_of_a_deleted_job_is_no_failure(step):
    written(step, b"text")
    end(step, timezone.now())
    key = log_of(step).pk
    JobStep.objects.all().delete()
    StepLog.objects.all().delete()
    assert not finalize_log(key)
    with pytest.raises(tasks.SubjectGone):
        tasks.finalize(str(key))


KILLED = """
import os, signal, sys, django
django.setup()
from orchestrator.step_logs import finalizing
finalizing.commit_attempt = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
finalizing.finalize_log(int(sys.argv[1]))
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
def test_a_process_that_is_killed_between_the_object_and_its_row_costs_nothing(storage, database_url, tmp_path):
    (step,) = new_steps()
    written(step, *(b"%d\n" % number for number in range(50)))
    end(step, timezone.now())
    key, text = log_of(step).pk, text_of(step)
    environment = {**os.environ, "DATABASE_URL": database_url, "ARTIFACTS_DIR": str(tmp_path)}
    for attempt in range(1, 3):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(key)], env=environment, cwd=BASE_DIR, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert (text_of(step), LogChunk.objects.count(), len(files(storage, "jobs/"))) == (text, 50, attempt)
    assert finalize_log(key)
    assert (text_of(step), LogChunk.objects.count()) == (text, 0)
    assert storage.read(log_of(step).object_key, 0, 999) == text
    assert DiscardedLogObject.objects.count() == 2
