"""The process executes tasks, records their failures, and loses none when it is killed."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, connection

from config.paths import BASE_DIR
from orchestrator.core.metrics_models import Count
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.queue import claim_task, request_task, request_tasks
from orchestrator.housekeeping.registry import PermanentFailure, SubjectGone, task
from orchestrator.processes import housekeeping as process_module
from orchestrator.processes.housekeeping import HousekeepingProcess
from tests.live_server import eventually
from tests.orchestrator.repositories.world import Origin, added

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def process(kinds, monkeypatch):
    monkeypatch.setattr(process_module.housekeeping_catalogue, "load", lambda: None)
    return HousekeepingProcess(threads=2, poll_seconds=0.02)


def declare(name: str, *errors: Exception | None, **options):
    """A kind whose executions raise these errors in turn, and the subjects that it was called with."""
    called, raised = [], iter(errors)

    @task(name, **options)
    def run(subject: str) -> None:
        called.append(subject)
        if (error := next(raised, None)) is not None:
            raise error

    return called


def counts() -> dict[tuple[str, str], float]:
    rows = Count.objects.filter(name__startswith="housekeeping_")
    return {(row.name, row.detail): row.value for row in rows}


@pytest.mark.django_db
def test_all_due_tasks_are_executed(process):
    called = declare("copy")
    request_tasks("copy", ["1", "2"], now=NOW)
    request_task("copy", "later", delay=timedelta(hours=1), now=NOW)
    assert process.run_due(now=NOW) == 2
    assert sorted(called) == ["1", "2"]
    assert counts() == {("housekeeping_runs", "copy"): 2}


@pytest.mark.django_db
def test_a_failure_is_recorded_and_the_other_tasks_are_executed(process, caplog):
    called = declare("copy", ValueError("no\0 route"))
    request_task("copy", "1", now=NOW)
    request_task("copy", "2", delay=timedelta(seconds=1), now=NOW)
    assert process.run_due(now=NOW + timedelta(seconds=1)) == 2
    assert called == ["1", "2"]
    found = HousekeepingTask.objects.get()
    assert (found.subject, found.failures, found.last_error) == ("1", 1, "ValueError: no route")
    assert "copy 1 failed" in caplog.text
    assert counts() == {("housekeeping_runs", "copy"): 2, ("housekeeping_failures", "copy"): 1}


@pytest.mark.django_db
def test_a_permanent_failure_and_a_subject_that_is_gone_are_not_repeated(process):
    called = declare("copy", PermanentFailure("malformed"), SubjectGone("deleted"), every=lambda: timedelta(0))
    request_task("copy", "1", now=NOW)
    process.run_due(now=NOW)
    assert HousekeepingTask.objects.get().due_at is None
    HousekeepingTask.objects.update(due_at=NOW)
    process.run_due(now=NOW)
    assert not HousekeepingTask.objects.exists()
    assert called == ["1", "1"]


@pytest.mark.django_db
def test_a_standing_task_exists_from_the_start(process):
    called = declare("sweep", every=lambda: timedelta(hours=1), is_standing=True)
    assert [process.run_due(now=NOW), process.run_due(now=NOW)] == [1, 0]
    assert process.run_due(now=NOW + timedelta(hours=1)) == 1
    assert called == ["", ""]


@pytest.mark.django_db(transaction=True)
def test_a_failure_is_recorded_also_if_the_session_of_the_task_was_ended(process):
    @task("copy")
    def copy(_: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    request_task("copy", "1")
    claimed = claim_task(process.name)
    assert not process.execute(claimed)
    assert HousekeepingTask.objects.get().failures == 1


@contextmanager
def running(process):
    thread = threading.Thread(target=process.run)
    thread.start()
    try:
        yield thread
    finally:
        process.stopping.set()
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.django_db(transaction=True)
def test_the_threads_execute_tasks_at_the_same_time(process):
    barrier = threading.Barrier(3)

    @task("copy")
    def copy(_: str) -> None:
        barrier.wait(60)

    request_tasks("copy", ["1", "2"])
    with running(process):
        barrier.wait(60)  # only if both run
        eventually(lambda: not HousekeepingTask.objects.exists())


@pytest.mark.django_db(transaction=True)
def test_a_task_that_takes_long_keeps_its_claim(process, monkeypatch):
    monkeypatch.setattr(process_module, "RENEW_SECONDS", 0.02)
    begun, end = threading.Event(), threading.Event()

    @task("copy")
    def copy(_: str) -> None:
        begun.set()
        end.wait(60)

    request_task("copy", "1")
    with running(process):
        assert begun.wait(60)
        until = HousekeepingTask.objects.get().claimed_until
        eventually(lambda: HousekeepingTask.objects.get().claimed_until > until)
        end.set()
        eventually(lambda: not HousekeepingTask.objects.exists())


@pytest.mark.django_db(transaction=True)
def test_a_task_that_does_not_end_with_the_process_is_released(kinds, monkeypatch):
    monkeypatch.setattr(process_module.housekeeping_catalogue, "load", lambda: None)
    monkeypatch.setattr(process_module, "STOP_SECONDS", 0.0)
    process = HousekeepingProcess(threads=1)  # without a second thread, which could claim the released task
    begun, end = threading.Event(), threading.Event()

    @task("copy")
    def copy(_: str) -> None:
        begun.set()
        end.wait(60)
        connection.close()

    request_task("copy", "1")
    try:
        with running(process):
            assert begun.wait(60)
        assert HousekeepingTask.objects.get().claimed_until is None
        assert claim_task("other") is not None
    finally:
        end.set()


@pytest.mark.django_db(transaction=True)
def test_an_error_of_the_queue_ends_no_thread(process, monkeypatch):
    called = declare("copy")
    failures = iter([OperationalError("no connection"), RuntimeError("bug")])
    claim = process_module.queue.claim_task

    def failing(*arguments, **options):
        if (error := next(failures, None)) is not None:
            raise error
        return claim(*arguments, **options)

    monkeypatch.setattr(process_module.queue, "claim_task", failing)
    request_task("copy", "1")
    with running(process):
        eventually(lambda: called == ["1"])


# --- the real program -------------------------------------------------------------------------------------------------


def housekeeping(tmp_path, database_url: str, *options: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "STATE_DIR": str(tmp_path / "state"),
        "MIRROR_DIR": str(tmp_path / "mirrors"),
        "REPOSITORY_ROOT": str(tmp_path / "origins"),
    }
    command = [sys.executable, "manage.py", "runhousekeeping", *options]
    return subprocess.Popen(
        command, cwd=BASE_DIR, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.django_db(transaction=True)
def test_the_command_mirrors_a_repository_and_ends_on_sigterm(tmp_path, database_url):
    origin = Origin(tmp_path / "origins" / "web.git")
    origin.commit({"a": b"1"})
    repository = added(origin.path)
    program = housekeeping(tmp_path, database_url)
    try:
        # Nothing has requested the mirror: the standing task finds the repository.
        eventually(lambda: (repository.refresh_from_db(), repository.mirrored_at)[1])
        program.send_signal(signal.SIGTERM)
        output, _ = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0, output
    assert "is running" in output
    assert (tmp_path / "mirrors" / str(repository.pk) / "mirror.git" / "HEAD").is_file()


@pytest.mark.django_db(transaction=True)
def test_the_task_of_a_killed_process_is_executed_by_another_one(tmp_path, database_url):
    """The first process blocks in the task, because a lock on the mirror is held here."""
    import fcntl  # noqa: PLC0415 - only here

    origin = Origin(tmp_path / "origins" / "web.git")
    origin.commit({"a": b"1"})
    repository = added(origin.path)
    folder = tmp_path / "mirrors" / str(repository.pk)
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = housekeeping(tmp_path, database_url)
        tasks = HousekeepingTask.objects.filter(kind="mirror_repository").exclude(claimed_by="")
        try:
            name = eventually(lambda: tasks.values_list("claimed_by", flat=True).first())
        finally:
            first.kill()
            first.communicate()
    assert name.endswith(f":{first.pid}")
    HousekeepingTask.objects.update(claimed_until=NOW)  # as if a minute had passed
    second = housekeeping(tmp_path, database_url, "--once")
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 0, output
    repository.refresh_from_db()
    assert repository.mirrored_at is not None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("threads", ["0", "65"])
def test_a_number_of_threads_out_of_range_is_one_line(tmp_path, database_url, threads):
    program = housekeeping(tmp_path, database_url, "--threads", threads)
    output, _ = program.communicate(timeout=60)
    assert (program.returncode, len(output.splitlines())) == (1, 1), output
    assert "1 to 64" in output
