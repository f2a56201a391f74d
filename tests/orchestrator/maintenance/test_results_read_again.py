"""The scheduler process reads results again whose reading has not ended."""

import threading
from datetime import timedelta
from typing import ClassVar

import pytest

from orchestrator.core.row_batches import RowRunner
from orchestrator.maintenance import leases
from orchestrator.processes.background import ResultReader
from orchestrator.processes.scheduler import Scheduler
from orchestrator.results.outputs import encode_output
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from tests.orchestrator.results.conftest import execution
from tests.orchestrator.results.conftest import store as store  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.django_db


def unread(body: bytes | None = None):
    """A job whose process died after `complete`."""
    run = execution()
    run.store(encode_output([{"exit_code": 0}]) if body is None else body)
    return run, run.complete()


@pytest.mark.parametrize(("seconds", "state"), [(29.9, JobState.PROCESSING), (30, JobState.SUCCEEDED)])
def test_a_result_is_read_again_after_half_a_minute(seconds, state):
    run, job = unread()
    read = leases.read_results_again(RowRunner(), now=job.phase_at + timedelta(seconds=seconds))
    assert (run.fresh().state, read) == (state, int(state == JobState.SUCCEEDED))


def test_a_result_that_cannot_be_read_now_stops_no_other(monkeypatch, caplog):
    (first, job), (second, _) = unread(), unread()
    original = leases.processing.read_again

    def read_again(job, *, now):
        if job.pk == first.job.pk:
            raise OSError("the store is away")
        original(job, now=now)

    monkeypatch.setattr(leases.processing, "read_again", read_again)
    rows = RowRunner()
    assert leases.read_results_again(rows, now=job.phase_at + timedelta(minutes=1)) == 1
    assert (first.fresh().state, second.fresh().state) == (JobState.PROCESSING, JobState.SUCCEEDED)
    assert rows.suspended("job_ulid") == [first.job.job_ulid]
    assert "the store is away" in caplog.text


def test_a_lost_job_has_no_result_to_read():
    run = execution()
    leases.expire_leases(RowRunner())
    assert run.fresh().state == JobState.LOST
    assert leases.read_results_again(RowRunner(), now=run.job.phase_at + timedelta(hours=1)) == 0


@pytest.fixture
def reading(monkeypatch):
    """Holds each reading of a result until `may_end` is set."""

    class Reading:
        begun, may_end = threading.Event(), threading.Event()
        threads: ClassVar[list[int]] = []

    held, original = Reading(), leases.processing.read_again

    def read_again(job, *, now):
        held.threads.append(threading.get_ident())
        held.begun.set()
        assert held.may_end.wait(20), "nobody let the reading end"
        original(job, now=now)

    monkeypatch.setattr(leases.processing, "read_again", read_again)
    yield held
    held.may_end.set()


@pytest.mark.django_db(transaction=True)
def test_a_round_does_not_wait_for_a_result(reading):
    """Leases expire in time, and the leader writes its beat, while a result is read."""
    run, _ = unread()
    Job.objects.update(phase_at=run.started)
    scheduler = Scheduler(period=1)
    assert scheduler.round()
    assert reading.begun.wait(60)
    silent = execution()
    assert scheduler.round(), "a second round while the first result is read"
    assert silent.fresh().state == JobState.LOST
    assert run.fresh().state == JobState.PROCESSING
    reading.may_end.set()
    assert scheduler._results.wait(60)
    assert run.fresh().state == JobState.SUCCEEDED
    assert len(reading.threads) == 1
    assert reading.threads[0] != threading.get_ident()


@pytest.mark.django_db(transaction=True)
def test_one_round_ends_with_its_results():
    run, _ = unread()
    Job.objects.update(phase_at=run.started)
    Scheduler(period=1).run(once=True)
    assert run.fresh().state == JobState.SUCCEEDED


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_that_stops_begins_no_further_result(reading):
    for _ in range(2):
        run, _ = unread()
    Job.objects.update(phase_at=run.started)
    reader = ResultReader()
    assert reader.advance(RowRunner())
    assert reading.begun.wait(60)
    assert not reader.stop(0.01), "it is still being read"
    reading.may_end.set()
    assert reader.wait(60)
    assert sorted(Job.objects.values_list("state", flat=True)) == [JobState.PROCESSING, JobState.SUCCEEDED]
    assert not reader.advance(RowRunner())


@pytest.mark.django_db(transaction=True)
def test_results_that_fail_are_counted_and_suspended(monkeypatch):
    run, _ = unread()
    Job.objects.update(phase_at=run.started)
    monkeypatch.setattr(leases.processing, "read_again", lambda *_, **__: 1 / 0)
    reader, rows = ResultReader(), RowRunner()
    assert reader.advance(rows)
    assert reader.wait(60)
    reader._rows._suspensions[(("job_ulid", run.job.job_ulid),)].until = float("inf")
    assert not reader.advance(rows), "the row is suspended"
    assert rows.failed_rows == 1
