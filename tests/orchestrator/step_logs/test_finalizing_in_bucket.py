"""Logs become objects of a real S3 server: a process that is killed, a server that is away, and chunks that come late."""

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from django.core.files.storage import storages

from config.paths import BASE_DIR
from orchestrator.admin.jobs.log import tail
from orchestrator.artifacts.storage import artifact_storage
from orchestrator.housekeeping import queue
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.processes.housekeeping import HousekeepingProcess
from orchestrator.step_logs import finalizing, tasks
from orchestrator.step_logs.job_log_reads import stored
from runtime_jobs.db_time import database_now
from runtime_jobs.models import DiscardedLogObject, LogChunk
from tests.orchestrator.artifacts.nanio_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, stoppable_s3_server
from tests.orchestrator.step_logs.logs import append, end, log_of, new_steps, text_of

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
S3 = "orchestrator.artifacts.s3_storage.ArtifactS3Storage"
LINES = [b"line %d\n" % number for number in range(40)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An S3 server of these tests, which they may stop."""
    with stoppable_s3_server(tmp_path_factory.mktemp("nanio")) as found:
        yield found


@pytest.fixture(autouse=True)
def _bucket(server, settings):
    """The bucket is the storage of artifacts."""
    options = {"bucket_name": BUCKET, "endpoint_url": server.url, "region_name": REGION}
    options |= {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    settings.STORAGES = settings.STORAGES | {"artifacts": {"BACKEND": S3, "OPTIONS": options}}
    assert artifact_storage() is storages["artifacts"]


def ended_step(lines=LINES):
    (step,) = new_steps()
    for seq, line in enumerate(lines):
        append(step, seq, line)
    end(step, database_now())
    return step


def objects_of(step):
    return sorted(key for key, _ in artifact_storage().objects(f"jobs/{step.job.pk}/"))


def run_tasks(now):
    """Execute the tasks that are due at a time, as the housekeeping process does; only those of logs."""
    process, number = HousekeepingProcess(threads=1), 0
    HousekeepingTask.objects.exclude(kind=tasks.FINALIZE).delete()
    while (task := queue.claim_task(process.name, now=now)) is not None:
        process.execute(task, now=now)
        number += 1
    return number


def test_the_log_of_an_ended_step_becomes_an_object_of_the_bucket():
    step = ended_step()
    assert run_tasks(database_now()) == 1
    step.refresh_from_db()
    assert objects_of(step) == [step.log_object_key] == [f"jobs/{step.job.pk}/steps/{step.pk}.log"]
    assert artifact_storage().read(step.log_object_key, 0, 1 << 20) == b"".join(LINES) == text_of(step)
    assert (LogChunk.objects.count(), step.log_byte_count) == (0, len(b"".join(LINES)))
    assert not HousekeepingTask.objects.exists()


def test_while_the_server_is_away_the_log_is_read_from_its_rows_and_moves_afterwards(server):
    step, begun = ended_step(), database_now()
    server.stop()
    try:
        now, failures = begun + timedelta(seconds=1), 0
        while now < begun + timedelta(minutes=1):
            assert run_tasks(now) == 1
            failures += 1
            assert text_of(step) == b"".join(LINES) == b"".join(stored(step.job_id))
            task = HousekeepingTask.objects.get()
            assert (task.failures, LogChunk.objects.count()) == (failures, len(LINES))
            assert "The bucket did not answer" in task.last_error
            assert task.due_at > now
            now = task.due_at
        assert failures >= 3
        append(step, len(LINES), b"late\n")
        assert text_of(step) == b"".join(LINES) + b"late\n"
    finally:
        server.start()
    assert run_tasks(now) == 1
    assert text_of(step) == b"".join(LINES) + b"late\n"
    assert (LogChunk.objects.count(), HousekeepingTask.objects.count(), len(objects_of(step))) == (0, 0, 1)
    assert set(DiscardedLogObject.objects.values_list("name", flat=True)) >= set(objects_of(step)) - {
        log_of(step).object_key
    }


def test_a_log_whose_object_cannot_be_read_for_a_while_is_explained_on_the_page_of_the_job(server):
    step = ended_step()
    run_tasks(database_now())
    server.stop()
    try:
        page = tail(step.job)
        assert "The storage of logs does not answer" in page.text
        with pytest.raises(OSError, match="did not answer"):
            text_of(step)
    finally:
        server.start()
    assert tail(step.job).text == b"".join(LINES).decode()
    assert text_of(step) == b"".join(LINES)


def test_late_chunks_are_added_each_by_an_object_of_its_own():
    step, expected = ended_step(), b"".join(LINES)
    run_tasks(database_now())
    for number in range(3):
        append(step, len(LINES) + number, b"late %d\n" % number)
        expected += b"late %d\n" % number
        assert text_of(step) == expected
        assert run_tasks(database_now() + timedelta(seconds=1)) == 1
        assert (text_of(step), LogChunk.objects.count()) == (expected, 0)
    assert len(objects_of(step)) == 4
    DiscardedLogObject.objects.update(discarded_at=database_now() - 2 * tasks.DISCARD_DELAY)
    tasks.delete_discarded("")
    assert objects_of(step) == [log_of(step).object_key]
    assert text_of(step) == expected


def test_an_object_larger_than_a_part_of_an_upload_is_never_whole_in_memory(monkeypatch):
    blocks = []
    block = b"0123456789abcdef" * (1 << 15)  # 512 KiB
    step = ended_step([block] * 40)  # 20 MiB, three parts of an upload
    real = finalizing._content

    def counted(*arguments):
        for part in real(*arguments):
            blocks.append(len(part))
            yield part

    monkeypatch.setattr(finalizing, "_content", counted)
    run_tasks(database_now())
    append(step, 40, b"late\n")
    run_tasks(database_now() + timedelta(seconds=1))
    assert max(blocks) <= 1 << 20
    assert sum(blocks) == 2 * 40 * len(block) + 5
    assert artifact_storage().size_of(log_of(step).object_key) == 40 * len(block) + 5
    assert text_of(step) == block * 40 + b"late\n"


KILLED = """
import os, signal, sys, django
django.setup()
from orchestrator.step_logs import finalizing
finalizing.commit_attempt = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
finalizing.finalize_log(int(sys.argv[1]))
"""


@pytest.mark.django_db(transaction=True)
def test_a_process_that_is_killed_between_put_and_delete_costs_no_byte(server, database_url):
    step = ended_step()
    key, text = log_of(step).pk, text_of(step)
    environment = {
        **os.environ, "DATABASE_URL": database_url, "ARTIFACTS_BUCKET": BUCKET, "ARTIFACTS_ENDPOINT_URL": server.url,
        "ARTIFACTS_REGION": REGION, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }  # fmt: skip
    for attempt in range(1, 3):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(key)], env=environment, cwd=BASE_DIR, capture_output=True, check=False
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert (text_of(step), LogChunk.objects.count(), len(objects_of(step))) == (text, len(LINES), attempt)
    append(step, len(LINES), b"late\n")
    assert text_of(step) == text + b"late\n"
    assert run_tasks(database_now()) == 1
    assert (text_of(step), LogChunk.objects.count()) == (text + b"late\n", 0)
    assert artifact_storage().read(log_of(step).object_key, 0, 1 << 20) == text + b"late\n"
    assert DiscardedLogObject.objects.count() == 2
