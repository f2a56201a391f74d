"""Two operations that meet on one job, on two connections: one winner, and nothing broken. A barrier, not luck."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from leases.errors import StaleLease
from leases.models import Lease
from orchestrator.services import cancellation, claiming, expiry, heartbeat, job_end, retries
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from runtime_jobs.states import FINAL_STATES, FailureReason, JobState
from tests.factories import ALICE, OPERATOR, ProjectFactory, WorkerFactory, claimed, offer, submitted
from tests.live_server import eventually
from tests.orchestrator.services.conftest import after
from tests.orchestrator.services.test_clock_after_locks import waits_for_a_lock
from tests.orchestrator.services.test_heartbeat import row, speak

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 12


def together(*actions: Callable[[], Any]) -> list[Any]:
    """Run at the same time, each on a connection of its own; return what each returned or raised."""
    barrier = threading.Barrier(len(actions))
    answers: list[Any] = [None] * len(actions)

    def act(place: int) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=60)
            answers[place] = actions[place]()
        except LifecycleError as error:
            answers[place] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=[place]) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return answers


def refused(answers: list[Any]) -> list[str]:
    return [answer.code for answer in answers if isinstance(answer, LifecycleError)]


@pytest.fixture
def claim():
    submitted()
    return claimed()


def test_concurrent_claims_never_share_a_job():
    project = ProjectFactory()
    jobs = {submitted(project).job_ulid for _ in range(24)}
    workers = [WorkerFactory() for _ in range(6)]

    def take_four(worker) -> list[str]:
        return [claiming.claim(worker=worker, offer=offer(worker)).job.job_ulid for _ in range(4)]

    taken = [ulid for ulids in together(*(lambda w=w: take_four(w) for w in workers)) for ulid in ulids]
    assert len(taken) == 24
    assert set(taken) == jobs


def test_a_claimer_passes_by_a_job_that_another_one_has_locked():
    project = ProjectFactory()
    first, second = submitted(project), submitted(project)
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Job.objects.locked().get(pk=first.pk)
            locked.set()
            done.wait(60)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert locked.wait(60)
    try:
        assert claimed().job.pk == second.pk
    finally:
        done.set()
        holder.join(60)


def test_an_event_being_written_does_not_hide_its_job_from_claimers():
    job = submitted()
    written, done = threading.Event(), threading.Event()

    def write() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            # What an insert of an event row holds on its job until its commit.
            cursor.execute("SELECT FROM runtime_jobs WHERE id = %s FOR KEY SHARE", [job.pk])
            written.set()
            done.wait(60)
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    assert written.wait(60)
    try:
        assert claimed().job.pk == job.pk
    finally:
        done.set()
        writer.join(60)


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_a_heartbeat_and_the_expiry_one_wins(claim, _round):
    at = claim.lease.expires_at
    beat, expired = together(
        lambda: heartbeat.renew(**speak(claim, now=after(at, -0.001))),
        lambda: expiry.expire(job_ulid=claim.job.job_ulid, now=after(at, 0.001)),
    )
    won = row(claim.lease).state == JobState.STARTING
    assert won == (expired is None)
    assert won == (not isinstance(beat, LifecycleError))


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_a_result_and_the_expiry_one_wins(claim, _round):
    at = claim.lease.expires_at
    done, expired = together(
        lambda: job_end.complete(**speak(claim, ingest_run_id="run_1", now=after(at, -0.001))),
        lambda: expiry.expire(job_ulid=claim.job.job_ulid, now=after(at, 0.001)),
    )
    assert (expired is None) == (row(claim.lease).state == JobState.SUCCEEDED)
    assert (expired is None) == (not isinstance(done, LifecycleError))


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_a_cancel_and_a_claim_the_job_never_runs_after_it_was_canceled(_round):
    job = submitted()
    worker = WorkerFactory()
    canceled, taken = together(
        lambda: cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30),
        lambda: claiming.claim(worker=worker, offer=offer(worker)),
    )
    job.refresh_from_db()
    if taken is None:
        assert job.state == JobState.CANCELED
    else:
        assert canceled.accepted
        assert job.cancel_requested_at is not None


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_a_cancel_and_a_result_there_is_one_end(claim, _round):
    canceled, done = together(
        lambda: cancellation.cancel(job_ulid=claim.job.job_ulid, actor=ALICE, deadline_seconds=30),
        lambda: job_end.complete(**speak(claim, ingest_run_id="run_1")),
    )
    assert row(claim.lease).state == JobState.SUCCEEDED
    assert not isinstance(done, LifecycleError)
    assert getattr(canceled, "code", "accepted") in {"already_final", "accepted"}


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_two_different_ends_the_first_counts(claim, _round):
    answers = together(
        lambda: job_end.complete(**speak(claim, ingest_run_id="run_1")),
        lambda: job_end.fail(**speak(claim, reason=FailureReason.WORKER_ERROR)),
    )
    assert refused(answers) == ["conflict"]
    assert row(claim.lease).state in FINAL_STATES


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_of_two_retries_one_makes_a_row(_round):
    job = submitted()
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    answers = together(*[lambda: retries.retry(job_ulid=job.job_ulid, actor=OPERATOR, reason="again")] * 2)
    assert refused(answers) == ["already_retried"]
    assert Job.objects.count() == 2


def test_a_stale_worker_that_waited_for_the_lock_is_refused(claim):
    """The fence is read after the wait: the job is leased again while the stale worker's call waits for it."""

    held, go = threading.Event(), threading.Event()
    answers: list[Any] = []

    def hold() -> None:
        with transaction.atomic():
            Job.objects.locked().get(pk=claim.job.pk)
            held.set()
            go.wait(60)

            Lease.objects.filter(pk=claim.lease.pk).update(expires_at=claim.lease.leased_at)
        connection.close()

    def speak_late() -> None:
        try:
            answers.append(job_end.complete(**speak(claim, ingest_run_id="run_1")))
        except StaleLease as stale:
            answers.append(stale)
        finally:
            connection.close()

    holder, speaker = threading.Thread(target=hold), threading.Thread(target=speak_late)
    holder.start()
    held.wait(60)
    speaker.start()
    _until_somebody_waits_for_a_lock()
    go.set()
    holder.join(60)
    speaker.join(60)
    assert isinstance(answers[0], StaleLease)
    expiry.expire(job_ulid=claim.job.job_ulid)


def _until_somebody_waits_for_a_lock() -> None:
    eventually(waits_for_a_lock)
