"""The order of events in the feeds: by stamp and id, the same for each job as in its history."""

import threading

import pytest
from django.db import connection, transaction

from leases.scheduling.claims import claim_jobs
from orchestrator.core.unit_of_work import operation
from orchestrator.services import cancellation, heartbeat, job_end, worker_state
from runtime_jobs import events
from runtime_jobs.models import JobEvent
from tests.factories import ALICE, ProjectFactory, WorkerFactory, claimed, offer, submitted
from tests.older_transactions import wait_for_older_transactions

pytestmark = pytest.mark.django_db(transaction=True)


def elsewhere(action):
    """Run the action in a transaction of another connection, and return its result."""
    found = []

    def run():
        try:
            found.append(action())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return found[0]


def take_transaction_id():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()")


def seqs_in_feed_order(job_ulid):
    return list(JobEvent.objects.filter(job_id=job_ulid).order_by("xid", "id").values_list("seq", flat=True))


def test_a_claim_with_an_older_transaction_than_the_submit_follows_it():
    project, worker = ProjectFactory(), WorkerFactory()
    with transaction.atomic():
        take_transaction_id()
        job = elsewhere(lambda: submitted(project))
        assert claim_jobs(worker, offer(worker), limit=1, acknowledge=True).leases
    assert seqs_in_feed_order(job.job_ulid) == [1, 2]


@operation
def late(_uow, project, worker, last):
    """Perform the last operation on a job in a transaction that is older than all others of the job."""
    take_transaction_id()
    job = elsewhere(lambda: submitted(project))
    lease = elsewhere(lambda: claimed(worker)).lease
    elsewhere(lambda: heartbeat.renew(lease_ulid=lease.lease_ulid, worker=worker, phase="executing"))
    match last:
        case "fail":
            job_end.fail.__wrapped__(_uow, lease_ulid=lease.lease_ulid, worker=worker, reason="worker_error")
        case "cancel":
            cancellation.cancel.__wrapped__(_uow, job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
        case "revoke":
            worker_state.revoke.__wrapped__(_uow, job_ulid=job.job_ulid, actor=ALICE, reason="a test")
    return job


@pytest.mark.parametrize("last", ["fail", "cancel", "revoke"])
def test_each_operation_follows_those_that_committed_before_it(last):
    job = late(ProjectFactory(), WorkerFactory(), last)
    seqs = seqs_in_feed_order(job.job_ulid)
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) > 3


def test_a_stamp_is_never_below_the_transaction_of_its_row():
    submitted()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), bool_and(xid::text::bigint >= xmin::text::bigint) FROM runtime_job_events")
        assert cursor.fetchone() == (1, True)


def test_the_newest_event_is_below_the_oldest_transaction_when_all_have_ended():
    """Without the `- 1` of the default it would wait for the next transaction of any client."""
    job = submitted()
    newest = JobEvent.objects.filter(job_id=job.job_ulid).latest("id").xid
    wait_for_older_transactions()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        assert newest < cursor.fetchone()[0]


def test_stamps_of_another_cluster_are_reset_and_nothing_else():
    job = submitted()
    claimed()
    wait_for_older_transactions()
    assert events.reset_foreign_stamps() == 0
    with transaction.atomic():
        foreign = "UPDATE runtime_job_events SET xid = (1::bigint << 40)::text::xid8"
        events._change_append_only("update", foreign, [])
    number = JobEvent.objects.count()
    assert events.reset_foreign_stamps() == number
    assert set(JobEvent.objects.values_list("xid", flat=True)) == {0}
    assert seqs_in_feed_order(job.job_ulid) == list(range(1, number + 1))
    assert events.first_invalid_seq(job.job_ulid) is None
    assert events.reset_foreign_stamps() == 0
