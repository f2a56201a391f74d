"""The output store: bytes as they came, whole or not at all, and a store that fails is shown."""

import io
import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.core.files.storage import storages
from django.core.management import call_command
from django.db import connection

from orchestrator.core.durable_files import DurableFileStorage
from orchestrator.results import outputs
from orchestrator.results.outputs import encode_output, output_path, read_output, write_output
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from tests.factories import submitted_steps

PROJECT, JOB = UUID(int=1), UUID(int=2)


def failures(operation: str) -> float:
    return outputs.OUTPUT_FAILURES.labels(operation)._value.get()


def test_output_is_at_the_path_of_the_document(store):
    project, job = uuid4(), uuid4()
    assert write_output(project, job, b"{}")
    assert (store / str(project) / "output" / "v0" / "jobs" / str(job)).read_bytes() == b"{}"
    assert output_path(project, job) == f"{project}/output/v0/jobs/{job}"


def test_a_path_with_nul_and_a_replacement_character_come_back_as_they_were_sent():
    body = encode_output([{"exit_code": 0, "output": {"\0bencher": "{}", "a": "\ufffd"}}])
    assert rb'"\u0000bencher"' in body
    assert write_output(PROJECT, JOB, body)
    assert read_output(PROJECT, JOB) == body


def test_an_error_is_part_of_the_output_of_a_failed_job():
    assert encode_output([], "exit code 7") == b'{"results":[],"error":"exit code 7"}'
    assert encode_output([]) == b'{"results":[]}'


def test_output_of_25_mebibytes_comes_back():
    body = encode_output([{"stdout": "x" * (25 << 20)}])
    assert write_output(PROJECT, JOB, body)
    assert read_output(PROJECT, JOB) == body


def test_a_second_output_of_a_job_has_a_name_of_its_own(store):
    """The later one may be that of a result that does not count."""
    first = write_output(PROJECT, JOB, b'{"results":[]}')
    second = write_output(PROJECT, JOB, b'{"results":[1]}')
    assert first == str(JOB)
    assert read_output(PROJECT, first) == b'{"results":[]}'
    assert read_output(PROJECT, second) == b'{"results":[1]}'
    assert {path.name for path in (store / output_path(PROJECT, JOB)).parent.iterdir()} == {first, second}


def test_two_outputs_that_are_stored_at_the_same_time_have_two_names(store, monkeypatch):
    """The second one begins after the first has found the name free, and before the first creates its file."""
    original, names = DurableFileStorage._save, []

    def save(self, name, content):
        if not names:
            names.append(None)
            names[0] = write_output(PROJECT, JOB, b"other")
        return original(self, name, content)

    monkeypatch.setattr(DurableFileStorage, "_save", save)
    name = write_output(PROJECT, JOB, b"own")
    assert (read_output(PROJECT, name), read_output(PROJECT, names[0])) == (b"own", b"other")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "result", [None, {}, {"output": 1}, {"output": "other"}, {"output": "../{job}"}, {"output": "{job}/../x"}]
)
def test_a_job_has_no_output_of_another_name(result):
    """A worker of ours may report any result."""
    job = submitted_steps()
    own = str(uuid_of(job.job_ulid))
    job.result = {
        key: value.format(job=own) if isinstance(value, str) else value for key, value in (result or {}).items()
    }
    assert outputs.output_name(job) is None
    job.result = outputs.result_naming(own)
    assert outputs.output_name(job) == own


def test_a_job_without_output_has_none():
    assert read_output(PROJECT, JOB) is None


def test_a_write_that_ends_in_the_middle_leaves_the_former_output(store, monkeypatch):
    write_output(PROJECT, JOB, b"former")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    before = failures("write")
    assert write_output(PROJECT, JOB, b"newer") is None
    assert failures("write") == before + 1
    assert read_output(PROJECT, JOB) == b"former"
    assert [path.name for path in (store / output_path(PROJECT, JOB)).parent.iterdir()] == [str(JOB)]


def test_the_file_and_each_new_folder_are_on_the_disk_before_the_store_answers(store, monkeypatch):
    synced = []
    original = os.fsync

    def fsync(opened: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{opened}").readlink()))
        original(opened)

    monkeypatch.setattr(os, "fsync", fsync)
    write_output(PROJECT, JOB, b"{}")
    folder = (store / output_path(PROJECT, JOB)).parent
    assert synced[-2:] == [f"{folder}/{JOB}", str(folder)]
    above = {str(path) for path in (folder.parent, folder.parent.parent, store / str(PROJECT), store)}
    assert above <= set(synced)


def test_output_above_the_limit_is_not_stored(settings, store):
    settings.OUTPUT_LIMIT_BYTES = 10
    assert write_output(PROJECT, JOB, b"x" * 11) is None
    assert not (store / str(PROJECT)).exists()


def test_reading_is_bounded_although_the_file_is_larger(settings):
    write_output(PROJECT, JOB, b"x" * 11)
    settings.OUTPUT_LIMIT_BYTES = 10
    with pytest.raises(outputs.OutputTooLarge):
        read_output(PROJECT, JOB)


def test_a_store_that_cannot_be_read_is_no_missing_output(store):
    """A missing output fails the job for good. A store that is away for a minute must not."""
    path = store / output_path(PROJECT, JOB)
    path.mkdir(parents=True)
    before = failures("read")
    with pytest.raises(OSError):
        read_output(PROJECT, JOB)
    assert failures("read") == before + 1


def test_output_is_readable_by_the_server_only(store):
    write_output(PROJECT, JOB, b"{}")
    assert (store / output_path(PROJECT, JOB)).stat().st_mode & 0o077 == 0


def test_the_installation_stores_output_in_its_own_folder():
    assert isinstance(storages["outputs"], DurableFileStorage)


@pytest.mark.django_db
def test_outputs_that_no_job_names_are_collected(store):
    """Those of deleted jobs at once, those of results that did not count after a day."""
    kept, gone = submitted_steps(), submitted_steps()
    for job in (kept, gone):
        name = write_output(PROJECT, uuid_of(job.job_ulid), b"{}")
        Job.objects.filter(pk=job.pk).update(result=outputs.result_naming(name))
    (store / "a stranger's file").write_bytes(b"")
    folder = store / str(PROJECT) / "output" / "v0" / "jobs"
    old, young = (folder / write_output(PROJECT, uuid_of(kept.job_ulid), b"no") for _ in range(2))
    for path in (old, folder / str(uuid_of(kept.job_ulid))):
        os.utime(path, (0, 0))
    stranger = store / str(PROJECT) / "output" / "v0" / "jobs" / "README"
    stranger.write_bytes(b"")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM runtime_jobs WHERE id = %s", [gone.pk])
    out = io.StringIO()
    call_command("collectoutputs", stdout=out)
    assert out.getvalue() == "2 outputs deleted.\n"
    assert read_output(PROJECT, uuid_of(kept.job_ulid)) == b"{}"
    assert read_output(PROJECT, uuid_of(gone.job_ulid)) is None
    assert (stranger.exists(), old.exists(), young.exists()) == (True, False, True)


@pytest.mark.django_db
def test_a_server_without_any_output_has_nothing_to_collect():
    assert outputs.delete_orphans() == 0
