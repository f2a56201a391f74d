"""Ends, submits and cancels that meet around a dependent job. None stays blocked, none starts twice."""

import threading

import pytest
from django.db import connection

from orchestrator.maintenance.leases import sweep
from orchestrator.services import cancellation, dependencies, job_end, retries
from runtime_jobs.models import EndedDependency, Job, JobEvent
from runtime_jobs.states import FailureReason, JobState
from tests.factories import ALICE, OPERATOR, ProjectFactory, WorkerFactory, claimed, submitted
from tests.orchestrator.services.test_heartbeat import speak
from tests.orchestrator.services.test_races import ROUNDS, _until_somebody_waits_for_a_lock, together

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project():
    return ProjectFactory()


def state_of(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def events(job: Job, kind: str) -> int:
    return JobEvent.objects.of(job.job_ulid).filter(event_type=kind).count()


def success(claim):
    return lambda: job_end.complete(**speak(claim, ingest_run_id=f"run_{claim.job.pk}"))


def failure(claim):
    return lambda: job_end.fail(**speak(claim, reason=FailureReason.WORKER_ERROR))


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_two_last_ones_that_succeed_together_unblock_once(project, _round):
    first, second = submitted(project), submitted(project)
    fan = [submitted(project, depends_on=(first, second)) for _ in range(3)]
    worker = WorkerFactory()
    together(success(claimed(worker)), success(claimed(worker)))
    assert {state_of(job) for job in fan} == {JobState.QUEUED}
    assert [events(job, "job.unblocked") for job in fan] == [1, 1, 1]
    assert not EndedDependency.objects.exists()


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_a_success_and_a_failure_the_failure_counts(project, _round):
    first, second = submitted(project), submitted(project)
    last = submitted(project, depends_on=(first, second))
    worker = WorkerFactory()
    together(success(claimed(worker)), failure(claimed(worker)))
    assert state_of(last) == JobState.CANCELED
    assert events(last, "job.canceled") == 1


@pytest.mark.parametrize(("end", "then"), [(success, JobState.QUEUED), (failure, JobState.CANCELED)])
@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_submit_that_meets_the_end_of_what_it_depends_on_is_not_forgotten(project, end, then, _round):
    first = submitted(project)
    answers = together(end(claimed()), lambda: submitted(project, depends_on=(first,)))
    assert state_of(answers[1]) == then


@pytest.mark.parametrize("end", [success, failure])
@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_a_cancel_and_an_end_there_is_one_story(project, end, _round):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    together(end(claimed()), lambda: cancellation.cancel(job_ulid=last.job_ulid, actor=ALICE, deadline_seconds=30))
    assert state_of(last) == JobState.CANCELED
    assert events(last, "job.canceled") == 1


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_process_and_clock_may_look_at_the_same_time(project, _round):
    first = submitted(project)
    fan = [submitted(project, depends_on=(first,)) for _ in range(6)]
    together(success(claimed()), sweep, sweep)
    sweep()
    assert [events(job, "job.unblocked") for job in fan] == [1] * 6


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_retry_of_a_dependent_meets_the_end_of_the_dependency(project, _round):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    cancellation.cancel(job_ulid=last.job_ulid, actor=ALICE, deadline_seconds=30)
    answers = together(
        success(claimed()), lambda: retries.retry(job_ulid=last.job_ulid, actor=OPERATOR, reason="again").job
    )
    assert state_of(answers[1]) == JobState.QUEUED


def in_the_middle(monkeypatch, name, act, *, meanwhile):
    """Run `act` in a thread until it has passed `dependencies.<name>`, then `meanwhile` in another one.

    When that waits for a lock, both continue.
    """
    real, passed, go = getattr(dependencies, name), threading.Event(), threading.Event()

    def pausing(*args, **named):
        found = real(*args, **named)
        passed.set()
        go.wait(60)
        return found

    def run(call):
        try:
            call()
        finally:
            connection.close()

    monkeypatch.setattr(dependencies, name, pausing)
    first, second = threading.Thread(target=run, args=[act]), threading.Thread(target=run, args=[meanwhile])
    first.start()
    assert passed.wait(60)
    monkeypatch.setattr(dependencies, name, real)
    second.start()
    _until_somebody_waits_for_a_lock()
    go.set()
    first.join(60)
    second.join(60)


def test_what_a_new_job_depends_on_cannot_end_unseen_before_its_commit(project, monkeypatch):
    """Without the lock the end finds no dependent, and the new job has seen no end."""
    first = submitted(project)
    claim = claimed()
    in_the_middle(
        monkeypatch, "lock_dependencies", lambda: submitted(project, depends_on=(first,)), meanwhile=success(claim)
    )
    assert [job.state for job in Job.objects.exclude(pk=first.pk)] == [JobState.QUEUED]


def test_nor_what_a_new_attempt_depends_on(project, monkeypatch):
    first = submitted(project)
    last = submitted(project, depends_on=(first,))
    claim = claimed()
    cancellation.cancel(job_ulid=last.job_ulid, actor=ALICE, deadline_seconds=30)
    in_the_middle(
        monkeypatch,
        "lock_status",
        lambda: retries.retry(job_ulid=last.job_ulid, actor=OPERATOR, reason="again"),
        meanwhile=success(claim),
    )
    assert Job.objects.get(retry_of_job_ulid=last.job_ulid).state == JobState.QUEUED
