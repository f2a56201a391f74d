"""Claims under a snapshot that keeps old versions, and the generations in which they find heads."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection, transaction

from leases.models import LaneGeneration, LaneHead, Lease, QueueHead
from leases.models.lanes import EMPTY
from leases.scheduling import generations
from leases.scheduling.generations import Generations
from orchestrator.audit.runner import run_audit
from orchestrator.processes.scheduler import Scheduler
from orchestrator.services import claiming, job_end
from runtime_jobs.db_time import database_now
from tests.factories import ProjectFactory, WorkerFactory, claimed, offer, submitted
from tests.live_server import eventually
from workers.models import Worker

TABLES = ("lane_heads", "queue_heads", "runtime_worker_leases")

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


@pytest.fixture
def few_writes(monkeypatch):
    """Let a generation begin after few writes of heads."""
    monkeypatch.setattr(generations, "WRITES", 10)


def write_heads() -> None:
    """Count as many writes as begin a generation."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('lane_versions') FROM generate_series(1, 12)")


def live() -> tuple[int, int]:
    """Return the oldest and the newest generation that claims read."""
    return LaneGeneration.objects.values_list("oldest", "number").latest("number")


def end(worker, claim) -> None:
    job_end.complete(lease_ulid=claim.lease.lease_ulid, worker=worker, ingest_run_id=f"run_{claim.lease.pk}")


def test_heads_follow_into_the_newest_generation(few_writes):
    jobs = [submitted(ProjectFactory()) for _ in range(6)]
    renewed = Generations()
    for number in (1, 2):
        write_heads()
        # Other transactions of the cluster may run just now, so that it takes more than one call.
        eventually(lambda: renewed.renew() or live()[0] == live()[1])
        renewed.renew()
        assert live() == (number, number), "heads that were moved are not counted as written"
        assert set(LaneHead.objects.values_list("generation", flat=True)) == {number}
        assert set(QueueHead.objects.values_list("generation", flat=True)) == {number}
    assert LaneGeneration.objects.count() == 1
    worker = WorkerFactory(capacity=6)
    assert [claimed(worker).job.pk for _ in jobs] == [job.pk for job in jobs]
    assert [str(finding) for finding in run_audit()] == []


@contextmanager
def entered(job) -> Iterator[None]:
    """Let a waiting job enter its lane again, in a transaction that commits afterwards."""
    written, commit = threading.Event(), threading.Event()

    def enter() -> None:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(
                    "SELECT release_and_enqueue('{}', %s::bigint[], %s::bigint[], %s::timestamptz[], '{}')",
                    [[job.pk], [job.lane_id], [job.created_at]],
                )
                written.set()
                assert commit.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=enter)
    thread.start()
    try:
        assert written.wait(60)
        yield
    finally:
        commit.set()
        thread.join(60)


@pytest.mark.parametrize("is_older", [True, False], ids=["older transaction", "younger transaction"])
def test_a_generation_stays_while_a_transaction_may_write_into_it(few_writes, monkeypatch, is_older):
    """A job enters its lane; before that commits, the scheduler process begins a generation and moves all heads.

    The transaction has a lower id than the one that begins the generation or, in the second case, a higher one. It read
    the number of the generation before, all the same.
    """
    job, other = submitted(ProjectFactory()), submitted(ProjectFactory())
    LaneHead.objects.filter(lane_id=job.lane_id).update(head_id=None, head_at=None, scan_from=EMPTY)
    QueueHead.objects.filter(head_id=job.pk).update(head_id=None, head_at=None)
    write_heads()
    renewed, running = Generations(), ExitStack()
    if is_older:
        running.enter_context(entered(job))
    else:
        create = LaneGeneration.objects.create

        def create_slowly(**columns: int) -> LaneGeneration:
            with transaction.atomic():
                made = create(**columns)
                running.enter_context(entered(job))
            return made

        monkeypatch.setattr(LaneGeneration.objects, "create", create_slowly)
    with running:
        for _ in range(3):
            renewed.renew()
        Generations().renew()  # as another process that takes over
        assert live() == (0, 1)
    worker = WorkerFactory(capacity=2)
    assert claimed(worker).job.pk == job.pk, "it is in the older generation"
    eventually(lambda: renewed.renew() or live() == (1, 1))
    assert claimed(worker).job.pk == other.pk
    assert [str(finding) for finding in run_audit()] == []


def test_a_process_that_leads_again_waits_for_transactions_of_the_newest_generation(few_writes, monkeypatch):
    """The process had begun a generation; another one gave the older one up, and began the next."""
    job = submitted(ProjectFactory())
    first, second = Generations(), Generations()
    with monkeypatch.context() as blocked:
        blocked.setattr(generations, "OLDEST_RUNNING", "0")  # as if a transaction ran all the time
        write_heads()
        first.renew()
    assert live() == (0, 1)
    eventually(lambda: second.renew() or live() == (1, 1))
    LaneHead.objects.filter(lane_id=job.lane_id).update(head_id=None, head_at=None, scan_from=EMPTY)
    QueueHead.objects.filter(head_id=job.pk).update(head_id=None, head_at=None)
    with entered(job):
        write_heads()
        second.renew()
        first.renew()
        assert live() == (1, 2)
    eventually(lambda: first.renew() or live() == (2, 2))
    assert claimed(WorkerFactory()).job.pk == job.pk


def test_the_bound_of_leases_stays_below_one_that_has_expired():
    """A heartbeat may have renewed it, and not be committed."""
    worker = WorkerFactory(capacity=10)
    for _ in range(5):
        submitted(ProjectFactory())
    expired = claimed(worker).lease
    Lease.objects.filter(pk=expired.pk).update(expires_at=database_now() - timedelta(seconds=1))
    with connection.cursor() as cursor:
        cursor.execute("SELECT setseed(0.54)")  # the third claim raises the bound
    for _ in range(4):
        claimed(worker)
    assert Worker.objects.get(pk=worker.pk).leases_from == expired.pk


def test_the_scheduler_process_renews_them(few_writes):
    submitted(ProjectFactory())
    write_heads()
    scheduler = Scheduler(period=1)
    try:
        eventually(lambda: scheduler.round() and live() == (1, 1))
    finally:
        scheduler.leadership.release()


def entries_read(table: str) -> int:
    """Return how many index entries of a table this transaction has read: those of old versions, too."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index WHERE indrelid = %s::regclass",
            [table],
        )
        return int(cursor.fetchone()[0])


def read_by_a_claim(worker) -> dict[str, int]:
    """Return the index entries that a claim reads, by table; it is undone."""
    with transaction.atomic():
        before = {table: entries_read(table) for table in TABLES}
        assert claiming.claim(worker=worker, offer=offer(worker)) is not None
        after = {table: entries_read(table) for table in TABLES}
        transaction.set_rollback(True)
    return {table: after[table] - before[table] for table in TABLES}


@contextmanager
def snapshot() -> Iterator[None]:
    """Keep a snapshot open, as a backup does."""
    given = connection.get_connection_params()
    names = {"dbname", "user", "password", "host", "port"} & given.keys()
    with psycopg.connect(**{name: given[name] for name in names}) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM lane_profiles")
        yield
        other.rollback()


def test_a_claim_reads_no_version_that_a_snapshot_keeps(few_writes):
    """200 jobs end under the snapshot. The statistics are of the few rows that are live, as autovacuum makes them."""
    projects = [ProjectFactory() for _ in range(2)]
    worker = WorkerFactory(capacity=10)
    for project in projects * 5:
        submitted(project)
    renewed = Generations()
    with snapshot():
        for number in range(200):
            if number == 150:
                with connection.cursor() as cursor:
                    cursor.execute(f"ANALYZE {', '.join(TABLES)}")
                connection.close()  # plans are made anew
            if number % 150 == 0:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT setseed(0.43)")  # claims draw when they raise the bound of leases
            submitted(projects[number % 2])
            end(worker, claimed(worker))
            if number % 50 == 49:
                eventually(lambda: renewed.renew() or live()[0] == live()[1])
        kept = read_by_a_claim(worker)
    assert kept["lane_heads"] <= 20, kept
    assert kept["queue_heads"] <= 20, kept
    assert kept["runtime_worker_leases"] <= 150, kept
