"""The scheduler process reads results again whose reading has not ended."""

from datetime import timedelta

import pytest

from orchestrator.maintenance import leases
from orchestrator.maintenance.rows import RowRunner
from orchestrator.maintenance.scheduler import TASKS
from orchestrator.results.outputs import encode_output
from orchestrator.results.processing import store_output
from runtime_jobs.states import JobState
from tests.orchestrator.results.conftest import execution
from tests.orchestrator.results.conftest import store as store  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.django_db


def unread(body: bytes | None = None):
    """A job whose process died after `complete`."""
    run = execution()
    store_output(run.job, encode_output([{"exit_code": 0}]) if body is None else body)
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


def test_the_scheduler_reads_results_in_each_round():
    (task,) = [task for task in TASKS if task.run == leases.read_results_again]
    assert task.every == 1
