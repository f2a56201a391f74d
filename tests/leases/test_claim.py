"""The claim as one SQL function: its cost, its event history, and the scan position that it leaves behind."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leases.errors import StaleLease, WorkerLocked
from leases.models import LaneHead, Lease
from leases.scheduling.claims import Claimant, claim_for_each
from orchestrator.audit.runner import run_audit
from orchestrator.services import claiming, heartbeat, job_end
from orchestrator.services.claiming import ClaimOrder
from runtime_jobs.events import first_invalid_seq
from runtime_jobs.models import Job, JobEvent
from tests.factories import ProjectFactory, WorkerFactory, claimed, offer, submitted
from workers.models import Worker

pytestmark = pytest.mark.django_db

OLD_SESSION, NEW_SESSION = "01kkygkagq0jk17bx6y1w8c3df", "01kkygkagr0jk17bx6y1w8c3df"


@pytest.fixture
def worker():
    return WorkerFactory(capacity=50)


def claim_many(worker, limit, **terms):
    return claiming.claim_many(worker=worker, offer=offer(worker), limit=limit, **terms)


def updates_in_this_transaction(table):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_get_xact_tuples_updated(%s::regclass)", [table])
        return cursor.fetchone()[0]


@pytest.mark.parametrize("acknowledge", [True, False])
@pytest.mark.parametrize("jobs", [0, 1, 7])
def test_a_claim_is_one_statement_and_writes_each_job_once(worker, jobs, acknowledge):
    project = ProjectFactory()
    for _ in range(jobs):
        submitted(project)
    before = updates_in_this_transaction("runtime_jobs")
    with CaptureQueriesContext(connection) as statements:
        claims = claim_many(worker, 64, acknowledge=acknowledge)
    assert len(claims) == jobs
    assert len(statements) == 1
    assert updates_in_this_transaction("runtime_jobs") - before == jobs


@pytest.mark.parametrize("acknowledge", [True, False])
def test_the_rows_that_a_claim_returns_are_the_rows_of_the_database(worker, acknowledge):
    submitted()
    found = claimed(worker, acknowledge=acknowledge)
    for row in (found.job, found.lease):
        stored = type(row).objects.get(pk=row.pk)
        loaded = {name: value for name, value in vars(row).items() if name != "_state"}
        assert loaded == {name: getattr(stored, name) for name in loaded}
    assert found.lease.job is found.job
    assert found.lease.worker is worker
    assert found.lease.state == ("granted" if acknowledge else "active")
    assert found.job.state == ("leased" if acknowledge else "starting")


@pytest.mark.parametrize("acknowledge", [True, False])
def test_the_event_history_of_claimed_jobs_is_a_valid_chain(worker, acknowledge):
    project = ProjectFactory()
    jobs = [submitted(project, repo="web") for _ in range(3)]
    Job.objects.filter(pk=jobs[1].pk).update(correlation_id='"\\\n\x7f é😀')
    for claim in claim_many(worker, 3, acknowledge=acknowledge):
        heartbeat.release(lease_ulid=claim.lease.lease_ulid, worker=worker)
    claim_many(worker, 3, acknowledge=acknowledge)
    assert [first_invalid_seq(job.job_ulid) for job in jobs] == [None, None, None]
    for job in Job.objects.all():
        newest = JobEvent.objects.of(job.job_ulid).last()
        assert (job.event_seq, job.event_head) == (newest.seq, newest.hash)
    assert [str(finding) for finding in run_audit()] == []


def test_the_scan_position_moves_when_one_job_at_a_time_passes_through_a_lane(worker):
    project = ProjectFactory()
    first = submitted(project)
    for _ in range(100):
        lease = claimed(worker).lease
        job_end.complete(lease_ulid=lease.lease_ulid, worker=worker, ingest_run_id=f"run_{lease.pk}")
        last = submitted(project)
    lane = LaneHead.objects.get(lane_id=first.lane_id)
    assert lane.scan_from > first.pk
    assert last.pk - lane.scan_from < 100
    assert claimed(worker).job.pk == last.pk
    assert [str(finding) for finding in run_audit()] == []


def test_the_scan_position_follows_a_backlog(worker):
    project = ProjectFactory()
    jobs = [submitted(project) for _ in range(40)]
    claim_many(worker, 20)
    assert LaneHead.objects.get().scan_from == jobs[20].pk
    claim_many(worker, 1)
    assert LaneHead.objects.get().head_id == jobs[21].pk


def test_a_newer_session_replaces_an_older_one(worker):
    for _ in range(3):
        submitted(ProjectFactory())
    assert claim_many(worker, 1, session=OLD_SESSION)[0].lease.session == OLD_SESSION
    assert claim_many(worker, 1, session=NEW_SESSION)[0].lease.session == NEW_SESSION
    with pytest.raises(StaleLease):
        claim_many(worker, 1, session=OLD_SESSION)
    assert Lease.objects.count() == 2
    assert claim_many(worker, 1)[0].lease.session == "", "a claim without a session changes none"
    assert Worker.objects.get(pk=worker.pk).session == NEW_SESSION


def test_leases_of_a_replaced_process_use_the_capacity():
    worker = WorkerFactory(capacity=2)
    for _ in range(4):
        submitted(ProjectFactory())
    assert len(claim_many(worker, 64, session=OLD_SESSION)) == 2
    assert claim_many(worker, 64, session=NEW_SESSION) == []


def test_an_unchanged_offer_does_not_write_the_worker(worker):
    claim_many(worker, 1, session=OLD_SESSION)
    before = updates_in_this_transaction("workers_worker")
    claim_many(worker, 1, session=OLD_SESSION)
    assert updates_in_this_transaction("workers_worker") == before
    changed = offer(worker, job_types=("steps", "runtime"))
    claiming.claim(worker=worker, offer=changed)
    assert Worker.objects.get(pk=worker.pk).offered_types == ["runtime", "steps"]


def test_a_worker_whose_exclusions_leave_it_nothing_is_not_told_that_there_is_no_job(db):
    """Of two workers that ask for two jobs each, one gets both of the first four that it alone may have."""
    one, two, project = WorkerFactory(), WorkerFactory(), ProjectFactory()
    for _ in range(4):
        job = submitted(project)
        Job.objects.filter(pk=job.pk).update(excluded_workers=[two.worker_id])
    last = submitted(project)
    claimants = [Claimant(one), Claimant(two)]
    first, second = claim_for_each(claimants, offer(one), limit=2, acknowledge=True)
    assert len(first.leases) == 2
    assert (list(second.leases), second.again) == ([], True)
    (again,) = claim_for_each(claimants[1:], offer(two), limit=2, acknowledge=True)
    assert [lease.job.pk for lease in again.leases] == [last.pk]


@pytest.mark.django_db(transaction=True)
def test_a_locked_worker_lets_no_other_one_wait():
    """Its claim by itself waits, as before."""
    workers = [WorkerFactory() for _ in range(3)]
    jobs = [submitted().pk for _ in workers]
    orders = [ClaimOrder(worker, offer(worker)) for worker in workers]
    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("SELECT FROM workers_worker WHERE id = %s FOR NO KEY UPDATE", [workers[1].pk])
        first, left_out, last = claiming.claim_for_workers(orders)
    finally:
        session.rollback()
        session.close()
    assert isinstance(left_out, WorkerLocked)
    assert [claims[0].job.pk for claims in (first, last)] == jobs[:2]
    (alone,) = claiming.claim_for_workers(orders[1:2])
    assert alone[0].job.pk == jobs[2]
