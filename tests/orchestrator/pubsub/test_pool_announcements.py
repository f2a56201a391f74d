"""Pools with work are announced after the commit, by a transaction of its own: no operation holds the lock of NOTIFY."""

import asyncio
import threading
from contextlib import contextmanager

import psycopg
import pytest
from django.db import OperationalError, connection

from orchestrator.core.unit_of_work import operation
from orchestrator.pubsub import hub as hub_module
from orchestrator.pubsub.hub import NotificationHub, announce_pools, pool_announcer
from orchestrator.pubsub.waiters import OfferKey
from orchestrator.services import claiming, heartbeat, job_end
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from tests.factories import (
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    limited,
    offer,
    submitted,
)
from tests.live_server import eventually

pytestmark = pytest.mark.django_db(transaction=True)
POOL = "shared-linux"


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


@pytest.fixture
def announced(monkeypatch):
    """The pools that operations hand to the announcer, which sends nothing."""
    found = []
    monkeypatch.setattr(pool_announcer, "announce", found.extend)
    return found


@contextmanager
def heard(database_url):
    """The PIDs of the sessions that notified of pools meanwhile."""
    found = []
    pool_announcer.flush(30)  # what tests before have submitted
    with psycopg.connect(database_url, autocommit=True) as listening:
        listening.execute("LISTEN lanes")
        yield found
        pool_announcer.flush(30)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify('lanes', 'the end')")
        for notice in listening.notifies(timeout=30):
            if notice.payload == "the end":
                return
            found.append(notice.pid)


def backend_pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


def test_no_operation_notifies_within_its_commit(project, database_url, announced):
    """A submit, a release, and the end of a job whose slot another one waits for: each makes a pool servable."""
    limited("sandtrace", max_active=1)
    worker = WorkerFactory()
    with heard(database_url) as found:
        submitted(project)
        assert announced == [POOL]
        first = claimed(worker)
        heartbeat.release(lease_ulid=first.lease.lease_ulid, worker=worker)
        assert announced == [POOL] * 2
        again = claimed(worker)
        submitted(project)
        assert claiming.claim(worker=worker, offer=offer(worker)) is None
        announced.clear()
        job_end.fail(lease_ulid=again.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
        assert announced == [POOL]
    assert found == []


def test_a_submit_is_announced_by_another_session(project, database_url):
    with heard(database_url) as found:
        own = backend_pid()
        submitted(project)
        assert backend_pid() == own
    assert len(found) == 1
    assert own not in found


def test_an_operation_that_is_rolled_back_announces_nothing(project, announced):
    """Fail after the statement that has put the job into its lane."""
    first = submitted(project)
    worker = WorkerFactory()
    lease = claimed(worker).lease
    announced.clear()

    @operation
    def enter_and_fail(uow):
        job = Job.objects.get(pk=first.pk)
        uow.lane_updates.entered.append((job.pk, job.lane_id, job.created_at))
        uow.write()
        raise LookupError

    with pytest.raises(LookupError):
        enter_and_fail()
    assert announced == []
    heartbeat.release(lease_ulid=lease.lease_ulid, worker=worker)
    assert announced == [POOL]


def test_a_waiter_of_another_process_is_woken(project, monkeypatch):
    """The hub of this loop is unknown to the submitting thread, as that of another process, and only listens."""

    async def story():
        hub = NotificationHub()
        monkeypatch.setattr(hub_module, "_hubs", {})
        alive = asyncio.Event()
        hub.listener.on_status = lambda is_alive: alive.set() if is_alive else None
        listening = asyncio.create_task(hub.listener.run())
        try:
            async with asyncio.timeout(60):
                await alive.wait()
                disconnected = asyncio.get_running_loop().create_future()
                key, noted = OfferKey(POOL, "1"), hub.waiters.notifications
                waiting = asyncio.create_task(
                    hub.waiters.wait(key, notifications=noted, seconds=50, disconnected=disconnected)
                )
                await asyncio.sleep(0)
                await asyncio.to_thread(in_a_thread, submitted, project)
                reason = await waiting
                assert reason is not None
                assert reason.cause == "notified"
        finally:
            listening.cancel()
            await asyncio.wait({listening})

    asyncio.run(story())


def in_a_thread(function, *values):
    try:
        return function(*values)
    finally:
        connection.close()


def test_the_session_that_announces_is_known_before_it_notifies(monkeypatch, database_url):
    hub = NotificationHub.__new__(NotificationHub)
    known = []
    hub.waiters = type("Waiting", (), {"add_own_backend": lambda _, backend: known.append(backend)})()
    monkeypatch.setattr(hub_module, "_hubs", {object(): hub})
    with heard(database_url) as found:
        announce_pools([POOL])
    assert found == known
    assert len(known) == 1


def test_many_submits_share_announcements(project, monkeypatch):
    """While one announcement is under way, any number of submits cause one more."""
    begun, let, sent = threading.Event(), threading.Event(), []

    def send(pools):
        begun.set()
        assert let.wait(60)
        sent.append(pools)

    one = hub_module.Announcer("test-pools", send, interval=0)
    monkeypatch.setattr(pool_announcer, "announce", one.announce)
    worker = WorkerFactory(capacity=10)
    submitted(project)
    assert begun.wait(60)
    for _ in range(5):
        claimed(worker)
        submitted(project)
    let.set()
    eventually(lambda: sent == [[POOL], [POOL]])


def test_a_database_that_does_not_answer_is_no_error_of_the_submit(project, monkeypatch):
    tried = threading.Event()

    def fail(_pools):
        tried.set()
        raise OperationalError

    one = hub_module.Announcer("test-pools", fail, interval=0)
    monkeypatch.setattr(pool_announcer, "announce", one.announce)
    job = submitted(project)
    assert tried.wait(60)
    assert claimed(WorkerFactory()).job.pk == job.pk
