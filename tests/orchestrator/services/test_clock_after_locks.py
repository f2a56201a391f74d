"""An operation reads the time, and what it decides by, after its last lock.

Each test stops one session between a read and a commit, and lets another one wait for it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from leases.advisory_locks import JOBS_OF_ADDRESS, LIMITS_OF_QUEUE, advisory_xact_lock
from leases.models import Breaker, BreakerState, LaneQueue, Lease, Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.incidents import breakers
from orchestrator.limits import job_limits
from orchestrator.services import claiming, job_end
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.models import OperatorEvent
from runtime_jobs.states import FailureReason
from tests.factories import OPERATOR, ProjectFactory, WorkerFactory, limited, offer, submitted
from tests.live_server import eventually
from workers.models import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]
WHY = {"cause": Cause(OPERATOR, "test")}


class Session(threading.Thread):
    """An operation in a database session of its own. `result()` waits for its end, and raises what it raised."""

    def __init__(self, operation: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._operation, self._found, self._error = operation, None, None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._operation()
        except BaseException as error:  # noqa: BLE001 raised again by result()
            self._error = error
        finally:
            connections.close_all()

    def result(self) -> object:
        self.join(60)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._found


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction does not see a session that began later
        cursor.execute("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid <> %s)",
                       [connection.connection.info.backend_pid])  # fmt: skip
        return bool(cursor.fetchone()[0])


@pytest.fixture
def claim_in_progress(monkeypatch) -> Iterator[Callable[[int], tuple[Session, threading.Event]]]:
    """Start a claim of so many jobs that stops after it took them, before its commit; the event continues it."""
    taken, go_on, original = threading.Event(), threading.Event(), claiming.claim_for_each

    def stopped(*given: Any, **terms: Any) -> object:
        with transaction.atomic():
            result = original(*given, **terms)
            taken.set()
            assert go_on.wait(60)
        return result

    def begin(most: int) -> tuple[Session, threading.Event]:
        worker = WorkerFactory()
        monkeypatch.setattr(claiming, "claim_for_each", stopped)
        session = Session(lambda: claiming.claim_many(worker=worker, offer=offer(worker), limit=most))
        assert taken.wait(60)
        monkeypatch.setattr(claiming, "claim_for_each", original)
        return session, go_on

    yield begin
    go_on.set()


def test_a_claim_reads_the_time_after_it_waited_for_an_address():
    """The lock of the job's source address is the last for which a claim waits."""
    submitted(ProjectFactory())
    worker = WorkerFactory()
    with transaction.atomic():
        advisory_xact_lock(JOBS_OF_ADDRESS, "127.0.0.1")
        claim = Session(lambda: claiming.claim(worker=worker, offer=offer(worker)))
        eventually(waits_for_a_lock, 30)
        released_at = database_now()
    claimed = claim.result()
    assert released_at < claimed.lease.leased_at == claimed.job.started_at


def test_a_claim_reads_the_time_after_it_waited_for_another_claim_of_the_worker():
    submitted(ProjectFactory())
    worker = WorkerFactory()
    with transaction.atomic():
        Worker.objects.locked().get(pk=worker.pk)
        claim = Session(lambda: claiming.claim(worker=worker, offer=offer(worker)))
        eventually(waits_for_a_lock, 30)
        released_at = database_now()
    assert claim.result().lease.leased_at > released_at


def test_jobs_that_started_before_a_rate_was_attached_do_not_count_against_it(claim_in_progress):
    project = ProjectFactory()
    for _ in range(5):
        submitted(project)
    claim, go_on = claim_in_progress(5)
    rate = Session(lambda: limited(project.organization.slug, kind=LimitKind.RATE, per_hour=1, burst=1, **WHY))
    eventually(waits_for_a_lock, 30)
    go_on.set()
    assert len(claim.result()) == 5
    rate.result()
    assert Limit.objects.get(kind=LimitKind.RATE).set_at > max(Lease.objects.values_list("leased_at", flat=True))
    assert [str(finding) for finding in run_audit()] == []


def test_a_rate_reads_the_time_after_it_waited_for_the_claims_of_each_queue():
    """A rate locks one queue after another. While it waits for the first one, a claim takes jobs of the second one."""
    project, worker = ProjectFactory(), WorkerFactory()
    submitted(project)
    for _ in range(3):
        submitted(project, priority=50)
    first = LaneQueue.objects.earliest("pk")
    with transaction.atomic():
        advisory_xact_lock(LIMITS_OF_QUEUE, first.pk, shared=True)  # as a claim of that queue does
        rate = Session(lambda: limited(project.organization.slug, kind=LimitKind.RATE, per_hour=1, burst=1, **WHY))
        eventually(waits_for_a_lock, 30)
        claim = Session(lambda: claiming.claim_many(worker=worker, offer=offer(worker), limit=3))
        assert [claimed.job.priority for claimed in claim.result()] == [50] * 3
    rate.result()
    assert Limit.objects.get(kind=LimitKind.RATE).set_at > max(Lease.objects.values_list("leased_at", flat=True))
    assert [str(finding) for finding in run_audit()] == []


def test_a_changed_rate_keeps_the_starts_that_a_claim_in_progress_has_spent(claim_in_progress):
    project = ProjectFactory()
    org = project.organization.slug
    for _ in range(12):
        submitted(project)
    limited(org, kind=LimitKind.RATE, per_hour=2, burst=6, **WHY)
    worker = WorkerFactory()
    assert claiming.claim(worker=worker, offer=offer(worker)) is not None
    claim, go_on = claim_in_progress(5)
    change = Session(lambda: limited(org, kind=LimitKind.RATE, per_hour=1, burst=6, **WHY))
    eventually(waits_for_a_lock, 30)
    go_on.set()
    assert len(claim.result()) == 5
    change.result()
    assert claiming.claim_many(worker=worker, offer=offer(worker), limit=6) == [], "the six starts are spent"
    assert [str(finding) for finding in run_audit()] == []


@contextmanager
def uncommitted(operation: Callable[[], object]) -> Iterator[None]:
    """Run an operation in another session, and commit it only at the end of the block."""
    done, go_on = threading.Event(), threading.Event()

    def run() -> None:
        with transaction.atomic():
            operation()
            done.set()
            assert go_on.wait(60)

    session = Session(run)
    assert done.wait(60)
    try:
        yield
    finally:
        go_on.set()
        session.result()


def test_a_pause_that_gets_a_later_end_meanwhile_stays():
    subject = LimitTarget(LimitScope.POOL, "", "shared-linux")
    limited(subject, kind=LimitKind.PAUSE, max_active=0, until=database_now() + timedelta(hours=1), **WHY)
    Limit.objects.update(until=database_now())
    key, later = Limit.objects.get().pk, database_now() + timedelta(hours=2)
    terms = job_limits.LimitTerms(0, until=later)
    with uncommitted(lambda: job_limits.set_limit.__wrapped__(UnitOfWork(), LimitKind.PAUSE, subject, terms, **WHY)):
        remove = Session(lambda: job_limits.remove_expired(limit_id=key))
        eventually(waits_for_a_lock, 30)
    remove.result()
    assert Limit.objects.get().until == later


def test_of_two_resumes_the_later_one_finds_no_pause():
    subject = LimitTarget(LimitScope.POOL, "", "shared-linux")
    limited(subject, kind=LimitKind.PAUSE, max_active=0, **WHY)
    nothing = job_limits.UNLIMITED
    with uncommitted(lambda: job_limits.set_limit.__wrapped__(UnitOfWork(), LimitKind.PAUSE, subject, nothing, **WHY)):
        second = Session(lambda: limited(subject, kind=LimitKind.PAUSE, **WHY))
        eventually(waits_for_a_lock, 30)
    with pytest.raises(NotFound):
        second.result()
    assert OperatorEvent.objects.filter(action="limit.lifted").count() == 1


def test_failures_during_the_wait_for_a_reset_of_the_breaker_count_no_more(settings):
    project = ProjectFactory()
    org = project.organization.slug
    settings.BREAKER = settings.BREAKER | {"least_jobs": 1}
    job = submitted(project)
    worker = WorkerFactory()
    lease = claiming.claim(worker=worker, offer=offer(worker)).lease
    Breaker.objects.create(org_slug=org, job_type=job.job_type, state=BreakerState.OPEN, opened_at=database_now())
    with uncommitted(lambda: job_limits.advisory_xact_lock(job_limits.QUEUES_OF_ORGANIZATION, org)):
        reset = Session(lambda: breakers.reset_breaker(org_slug=org, job_type=job.job_type, **WHY))
        eventually(waits_for_a_lock, 30)
        job_end.fail(lease_ulid=lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
    reset.result()
    assert breakers.evaluate_breaker(org_slug=org, job_type=job.job_type) is None
    assert Breaker.objects.get().state == BreakerState.CLOSED
