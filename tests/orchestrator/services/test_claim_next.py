"""A final message that claims the next job: both happen or, if the message is refused, neither."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from psycopg.errors import LockNotAvailable

from leases.errors import StaleLease
from leases.models import Lease, LimitSlot, QueueHead
from leases.states import LeaseState
from orchestrator.audit.runner import run_audit
from orchestrator.services import cancellation, claim_next, claiming, heartbeat, job_end, worker_state
from orchestrator.services.claim_next import ClaimRequest, next_lease_ulid
from orchestrator.services.job_end import CompleteMessage, FailMessage
from runtime_jobs.errors import Conflict
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason, JobState
from tests.factories import (
    ALICE,
    OPERATOR,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    limited,
    offer,
    submitted,
    submitted_steps,
)
from tests.live_server import eventually
from tests.orchestrator.services.test_clock_after_locks import Session, waits_for_a_lock
from workers.models import Worker

pytestmark = pytest.mark.django_db

ORG = "sandtrace"
SHUTDOWN = FailMessage(FailureReason.WORKER_SHUTDOWN)
OLD_SESSION, NEW_SESSION = "01kkygkagq0jk17bx6y1w8c3df", "01kkygkagr0jk17bx6y1w8c3df"


@pytest.fixture
def worker():
    return WorkerFactory(capacity=1)


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug=ORG))


def request(worker, **changes):
    values = {"offer": offer(worker, job_types=("runtime", "steps")), "acknowledge": True}
    return ClaimRequest(**values | changes)


def complete(lease, *, run="", now=None, **changes):
    message = CompleteMessage(run or f"run_{lease.pk}")
    claim = request(lease.worker, **changes)
    return claim_next.complete_and_claim(
        lease_ulid=lease.lease_ulid, worker=lease.worker, message=message, claim=claim, now=now
    )


def fail(lease, message=SHUTDOWN, **changes):
    claim = request(lease.worker, **changes)
    return claim_next.fail_and_claim(lease_ulid=lease.lease_ulid, worker=lease.worker, message=message, claim=claim)


def findings():
    return [str(finding) for finding in run_audit()]


def test_a_full_worker_gets_the_next_job_with_its_final_message(worker, project):
    first, second = submitted(project), submitted(project)
    lease = claimed(worker).lease
    finished = complete(lease)
    assert (finished.job.pk, finished.job.state) == (first.pk, JobState.SUCCEEDED)
    assert finished.next_claim.job.pk == second.pk
    assert finished.next_claim.lease.state == LeaseState.GRANTED
    assert Lease.objects.open().get().lease_ulid == finished.next_claim.lease.lease_ulid
    assert findings() == []


def test_a_completion_that_claims_is_two_statements(worker, project):
    submitted_steps(project)
    submitted_steps(project)
    lease = claimed(worker, job_types=("steps",)).lease
    complete_steps(lease)  # stores the changed offer
    lease = Lease.objects.open().get()
    lease.worker = worker
    submitted_steps(project)
    with CaptureQueriesContext(connection) as statements:
        finished = complete_steps(lease)
    assert finished.next_claim is not None
    texts = [query["sql"] for query in statements if "SAVEPOINT" not in query["sql"]]
    assert len(texts) == 2, texts


def test_a_job_that_holds_slots_ends_before_the_claim_begins(worker, project):
    limited(ORG, max_active=1)
    for _ in range(3):
        submitted_steps(project)
    complete_steps(claimed(worker, job_types=("steps",)).lease)  # stores the changed offer
    lease = Lease.objects.open().get()
    lease.worker = worker
    with CaptureQueriesContext(connection) as statements:
        finished = complete_steps(lease)
    assert finished.next_claim is not None
    texts = [query["sql"] for query in statements if "SAVEPOINT" not in query["sql"]]
    assert ["write_and_claim" in text for text in texts] == [False, True, False]
    assert "claim" in texts[2]


def test_a_claim_that_fails_after_the_message_leaves_it_counted(worker, project, monkeypatch, caplog):
    limited(ORG, max_active=1)
    first, _ = submitted(project), submitted(project)

    def broken(_claim):
        raise OperationalError("canceling statement due to lock timeout") from LockNotAvailable()

    monkeypatch.setattr(claim_next, "claim_one", broken)
    finished = complete(claimed(worker).lease)
    assert finished.next_claim is None
    assert (finished.job.pk, Job.objects.get(pk=first.pk).state) == (first.pk, JobState.SUCCEEDED)
    assert "no claim after the final message" in caplog.text


def complete_steps(lease):
    return claim_next.complete_and_claim(
        lease_ulid=lease.lease_ulid,
        worker=lease.worker,
        message=CompleteMessage(exit_code=0),
        claim=request(lease.worker),
    )


def test_the_slot_of_the_ended_job_is_free_for_the_next_one(worker, project):
    limited(ORG, max_active=1)
    submitted(project)
    second = submitted(project)
    lease = claimed(worker).lease
    assert claiming.claim(worker=WorkerFactory(), offer=offer(worker)) is None
    assert complete(lease).next_claim.job.pk == second.pk
    assert LimitSlot.objects.get(job_id__isnull=False).job_id == second.pk
    assert findings() == []


@pytest.mark.parametrize("reason", [FailureReason.WORKER_SHUTDOWN, FailureReason.COMMAND_FAILED])
def test_a_failure_claims_the_next_job(worker, project, reason):
    first = submitted(project)
    second = submitted(project)
    finished = fail(claimed(worker).lease, FailMessage(reason))
    assert finished.job.pk == first.pk
    assert finished.job.state == JobState.FAILED
    assert finished.next_claim.job.pk == second.pk
    assert findings() == []


def test_the_lease_is_active_without_a_promise_to_acknowledge(worker, project):
    submitted(project)
    submitted(project)
    following = complete(claimed(worker).lease, acknowledge=False).next_claim
    assert following.lease.state == LeaseState.ACTIVE
    assert following.job.state == JobState.STARTING


def test_a_claim_that_finds_nothing_leaves_the_completion(worker, project):
    job = submitted(project)
    finished = complete(claimed(worker).lease)
    assert finished.next_claim is None
    assert Job.objects.get(pk=job.pk).state == JobState.SUCCEEDED
    assert findings() == []


def test_an_inconclusive_claim_is_repeated_after_the_completion(worker, project):
    """The claim of the statement visits 16 queues. Here more of them look full, because their only job was claimed."""
    submitted(project, priority=50)
    lease, other = claimed(worker).lease, WorkerFactory(capacity=100)
    for priority in range(100, 130):
        submitted(project, priority=priority)
        claimed(other)
    assert QueueHead.objects.filter(head_id__isnull=False).count() > 16
    last = submitted(project, priority=20)
    assert complete(lease).next_claim.job == last
    assert findings() == []


def test_a_drained_worker_completes_and_gets_nothing(worker, project):
    submitted(project)
    submitted(project)
    lease = claimed(worker).lease
    Worker.objects.filter(pk=worker.pk).update(state="draining")
    finished = complete(lease)
    assert finished.job.state == JobState.SUCCEEDED
    assert finished.next_claim is None


def test_a_replaced_process_completes_and_gets_nothing(worker, project):
    submitted(project)
    submitted(project)
    lease = claimed(worker, session=OLD_SESSION).lease
    Worker.objects.filter(pk=worker.pk).update(session=NEW_SESSION)
    finished = complete(lease, session=OLD_SESSION)
    assert finished.job.state == JobState.SUCCEEDED
    assert finished.next_claim is None


# --- refusals ---------------------------------------------------------------------------------------------------------


def assert_refused(error, act):
    leases = list(Lease.objects.order_by("pk").values())
    with pytest.raises(error):
        act()
    assert list(Lease.objects.order_by("pk").values()) == leases, "a refused message claims nothing"
    assert findings() == []


def test_an_unknown_lease_claims_nothing(worker, project):
    submitted(project)
    stranger = WorkerFactory()
    submitted(project)
    lease = claimed(worker).lease
    lease.worker = stranger
    assert_refused(StaleLease, lambda: complete(lease))


def test_an_expired_lease_claims_nothing(worker, project):
    submitted(project)
    submitted(project)
    lease = claimed(worker).lease
    assert_refused(StaleLease, lambda: complete(lease, now=lease.expires_at + timedelta(seconds=1)))


def test_a_revoked_lease_claims_nothing(worker, project):
    job = submitted(project)
    submitted(project)
    lease = claimed(worker).lease
    worker_state.revoke(job_ulid=job.job_ulid, actor=OPERATOR, reason="test")
    assert_refused(StaleLease, lambda: complete(lease))
    assert_refused(StaleLease, lambda: fail(lease))


def test_another_final_message_claims_nothing(worker, project):
    submitted(project)
    lease = claimed(worker).lease
    job_end.complete(lease_ulid=lease.lease_ulid, worker=worker, ingest_run_id="run_1")
    submitted(project)
    assert_refused(Conflict, lambda: complete(lease, run="run_2"))
    assert_refused(Conflict, lambda: fail(lease))


def test_the_run_of_another_job_claims_nothing(worker, project):
    submitted(project)
    submitted(project)
    submitted(project)
    lease = claimed(worker).lease
    job_end.complete(lease_ulid=lease.lease_ulid, worker=worker, ingest_run_id="run_1")
    lease = claimed(worker).lease
    assert_refused(Conflict, lambda: complete(lease, run="run_1"))


# --- repetitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", [complete, fail])
def test_a_repetition_returns_the_same_lease_and_claims_nothing(worker, project, finish):
    for _ in range(3):
        submitted(project)
    worker.capacity = 3
    worker.save()
    lease = claimed(worker).lease
    first, again = finish(lease), finish(lease)
    assert again.job.pk == first.job.pk
    assert again.next_claim.lease.lease_ulid == first.next_claim.lease.lease_ulid
    assert again.next_claim.job.pk == first.next_claim.job.pk
    assert Lease.objects.open().count() == 1


def test_a_repetition_returns_no_lease_that_has_ended(worker, project):
    submitted(project)
    submitted(project)
    lease = claimed(worker).lease
    following = complete(lease).next_claim.lease
    heartbeat.release(lease_ulid=following.lease_ulid, worker=worker)
    assert complete(lease).next_claim is None


def test_a_repetition_of_a_plain_completion_claims_nothing(worker, project):
    submitted(project)
    lease = claimed(worker).lease
    job_end.complete(lease_ulid=lease.lease_ulid, worker=worker, ingest_run_id=f"run_{lease.pk}")
    submitted(project)
    assert complete(lease).next_claim is None


def test_the_id_of_the_next_lease_needs_the_secret_key(worker, project, settings):
    submitted(project)
    lease = claimed(worker).lease
    lease.completed_at = lease.leased_at
    first = next_lease_ulid(lease)
    settings.SECRET_KEY = "another secret key of at least fifty characters, for this test"
    assert next_lease_ulid(lease) != first
    assert next_lease_ulid(lease)[:14] == first[:14], "the time"


# --- races ------------------------------------------------------------------------------------------------------------


def race(*acts):
    """Start all acts while this session holds the row of the worker, and return their results or refusals."""
    with transaction.atomic():
        Worker.objects.locked().get()
        sessions = [Session(act) for act in acts]
        eventually(waits_for_a_lock, 30)
    return [outcome(session) for session in sessions]


def outcome(session):
    try:
        return session.result()
    except (StaleLease, Conflict) as refusal:
        return refusal


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(120)
def test_a_revocation_during_the_wait_for_the_worker_leaves_nothing_claimed():
    project, worker = ProjectFactory(), WorkerFactory(capacity=1)
    job = submitted(project)
    submitted(project)
    lease = claimed(worker).lease
    with transaction.atomic():
        Worker.objects.locked().get()
        session = Session(lambda: complete(lease))
        eventually(waits_for_a_lock, 30)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(revoke, job.job_ulid).result(60)
    assert isinstance(outcome(session), StaleLease)
    assert not Lease.objects.open().exists()
    assert findings() == []


def revoke(job_ulid):
    try:
        worker_state.revoke(job_ulid=job_ulid, actor=OPERATOR, reason="test")
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(120)
def test_a_cancel_during_the_wait_is_seen_and_the_next_job_is_claimed():
    project, worker = ProjectFactory(), WorkerFactory(capacity=1)
    job, second = submitted(project), submitted(project)
    lease = claimed(worker).lease
    with transaction.atomic():
        Worker.objects.locked().get()
        session = Session(lambda: complete(lease))
        eventually(waits_for_a_lock, 30)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(cancel, job.job_ulid).result(60)
    finished = session.result()
    assert finished.job.cancel_requested_at is not None
    assert finished.job.is_final
    assert finished.next_claim.job.pk == second.pk
    assert findings() == []


def cancel(job_ulid):
    try:
        cancellation.cancel(job_ulid=job_ulid, actor=ALICE, deadline_seconds=30)
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(120)
def test_the_same_message_twice_at_once_claims_one_job():
    project, worker = ProjectFactory(), WorkerFactory(capacity=3)
    for _ in range(3):
        submitted(project)
    lease = claimed(worker).lease
    results = race(lambda: complete(lease), lambda: complete(lease))
    assert {result.next_claim.lease.lease_ulid for result in results} == {Lease.objects.open().get().lease_ulid}
    assert findings() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(300)
def test_slots_of_one_worker_that_end_at_once_keep_capacity_and_limit():
    """Each lane is released and claimed from by several calls at the same time."""
    project, worker = ProjectFactory(organization=OrganizationFactory(slug=ORG)), WorkerFactory(capacity=4)
    limited(ORG, max_active=3)
    for _ in range(24):
        submitted(project)

    def work(lease):
        while lease is not None:
            following = complete(lease).next_claim
            assert Lease.objects.open().count() <= 3
            lease = following and following.lease

    with ThreadPoolExecutor(3) as pool:
        leases = [claimed(worker).lease for _ in range(3)]
        list(pool.map(lambda lease: [work(lease), connection.close()], leases))
    left = Job.objects.exclude(state=JobState.SUCCEEDED).count()
    while (claim := claiming.claim(worker=worker, offer=offer(worker))) is not None:
        complete(claim.lease)
        left -= 1
    assert left <= 0
    assert Job.objects.filter(state=JobState.SUCCEEDED).count() == 24
    assert findings() == []


@pytest.mark.django_db(transaction=True)
def test_a_failure_between_both_leaves_neither(monkeypatch):
    """The process or the database dies after the completion was written and before the claim: nothing is committed."""
    project, worker = ProjectFactory(), WorkerFactory(capacity=1)
    job = submitted(project)
    submitted(project)
    lease = claimed(worker).lease
    before = list(Job.objects.order_by("pk").values())
    # The claim is refused by the unique key of leases, after write_changes.
    monkeypatch.setattr(claim_next, "next_lease_ulid", lambda _ended: lease.lease_ulid)
    with pytest.raises(Exception, match="lease_ulid"):
        complete(lease)
    assert list(Job.objects.order_by("pk").values()) == before
    assert Lease.objects.get(job_id=job.job_ulid).is_open
    monkeypatch.undo()
    assert complete(lease).next_claim is not None
    assert findings() == []
