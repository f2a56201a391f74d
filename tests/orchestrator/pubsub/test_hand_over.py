"""Tests the hand-over of jobs to waiters of the same process: after the commit, without a notification, or not at all."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connection

from orchestrator.core.unit_of_work import operation
from orchestrator.pubsub import hub as hub_module
from orchestrator.pubsub.hub import NotificationHub
from orchestrator.pubsub.waiters import OfferKey
from orchestrator.services import claiming, heartbeat
from runtime_jobs.models import Job
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, claimed, offer, submitted

pytestmark = pytest.mark.django_db(transaction=True)
POOL = "shared-linux"


class Loop:
    """Records the calls that other threads make into an event loop, with what PostgreSQL has committed then."""

    def __init__(self, database_url):
        self.database_url, self.calls = database_url, []

    def call_soon_threadsafe(self, function, pool):
        with psycopg.connect(self.database_url) as session:
            (queued,) = session.execute("SELECT count(*) FROM runtime_jobs WHERE state = 'queued'").fetchone()
        self.calls.append((function.__name__, pool, queued))


@pytest.fixture
def loop(database_url, monkeypatch):
    """An event loop in which a long poll waits for the default pool."""
    found, hub = Loop(database_url), NotificationHub.__new__(NotificationHub)
    hub.waiters = type(
        "Waiting", (), {"has_waiters": lambda _, pool: pool == POOL, "hand_over": hand_over, "add_own_backend": ignore}
    )()
    monkeypatch.setattr(hub_module, "_hubs", {found: hub})
    return found


def hand_over():
    raise AssertionError


def ignore(*_):
    """Take a session that announces."""


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


def test_a_submit_hands_over_after_its_commit(loop, project):
    submitted(project)
    assert loop.calls == [("hand_over", POOL, 1)]


def test_a_released_job_is_handed_over(loop, project):
    submitted(project)
    worker = WorkerFactory()
    lease = claimed(worker).lease
    loop.calls.clear()
    heartbeat.release(lease_ulid=lease.lease_ulid, worker=worker)
    assert loop.calls == [("hand_over", POOL, 1)]


def test_an_operation_that_is_rolled_back_hands_nothing_over(loop, project):
    first = submitted(project)
    loop.calls.clear()

    @operation
    def refused(uow):
        copy = Job.objects.get(pk=first.pk)
        copy.pk, copy.job_ulid = None, "job_00000000000000000000000000"
        uow.add(copy)
        uow.flush()
        raise LookupError

    with pytest.raises(LookupError):
        refused()
    assert loop.calls == []


def test_a_pool_without_waiters_costs_the_event_loop_nothing(loop, project, monkeypatch):
    monkeypatch.setattr("tests.orchestrator.pubsub.test_hand_over.POOL", "elsewhere")
    submitted(project)
    assert loop.calls == []


def test_a_loop_that_was_closed_is_no_error(project, monkeypatch):
    closed = asyncio.new_event_loop()
    closed.close()
    hub = NotificationHub.__new__(NotificationHub)
    hub.waiters = type(
        "Waiting", (), {"has_waiters": lambda *_: True, "hand_over": hand_over, "add_own_backend": ignore}
    )()
    monkeypatch.setattr(hub_module, "_hubs", {closed: hub})
    submitted(project)


def test_a_waiter_is_woken_without_a_notification(project, monkeypatch):
    """No connection listens in this loop, so that no notification can arrive."""

    async def story():
        hub = NotificationHub()
        monkeypatch.setattr(hub_module, "_hubs", {asyncio.get_running_loop(): hub})
        disconnected = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(
            hub.waiters.wait(OfferKey(POOL, "1"), notifications=0, seconds=60, disconnected=disconnected)
        )
        await asyncio.sleep(0)
        job = await in_a_thread(submitted, project)
        reason = await asyncio.wait_for(waiting, 30)
        assert (reason.cause, job.state) == ("handed_over", "queued")
        assert hub.waiters.notifications == 0

    asyncio.run(story())


def test_a_commit_while_a_claim_finds_nothing_is_not_lost(project, monkeypatch):
    """The claim has read the queue and is not registered yet; the notification arrives before or after that."""
    for arrives_first in (True, False):

        async def story(arrives_first=arrives_first):
            hub = NotificationHub()
            monkeypatch.setattr(hub_module, "_hubs", {asyncio.get_running_loop(): hub})
            noted = hub.waiters.notifications  # the attempt begins, and finds nothing
            await in_a_thread(submitted, project)
            if arrives_first:
                hub.waiters.notify_pool(POOL)
            disconnected = asyncio.get_running_loop().create_future()
            waiting = asyncio.create_task(
                hub.waiters.wait(OfferKey(POOL, "1"), notifications=noted, seconds=60, disconnected=disconnected)
            )
            await asyncio.sleep(0)
            if not arrives_first:
                hub.waiters.notify_pool(POOL)
            assert (await asyncio.wait_for(waiting, 30)).cause == "notified"

        asyncio.run(story())


def test_submits_and_waits_that_race_lose_no_job(project, monkeypatch):
    """Each job is claimed by a waiter that only the hand-over or another waiter can wake."""
    jobs, workers = 8, 4
    made = [WorkerFactory(capacity=jobs) for _ in range(workers)]
    begin, done = threading.Barrier(jobs), asyncio.Event()

    def claim_one(worker):
        return claiming.claim(worker=worker, offer=offer(worker), acknowledge=False)

    def submit():
        begin.wait(60)
        submitted(project)

    async def claim(hub, worker, taken):
        disconnected = asyncio.get_running_loop().create_future()
        key, reason = OfferKey(POOL, "1"), None
        while len(taken) < jobs:
            noted = hub.waiters.notifications
            job = await in_a_thread(claim_one, worker)
            if reason is not None:
                hub.waiters.end_attempt(key, reason, found_work=job is not None)
            if job is not None:
                taken.append(job.job.job_ulid)
                if len(taken) == jobs:
                    done.set()
                hub.waiters.on_work_found(key)
                reason = None
                continue
            if reason is not None:
                hub.waiters.on_empty(key, reason)
            reason = await hub.waiters.wait(key, notifications=noted, seconds=60, disconnected=disconnected)

    async def story():
        hub = NotificationHub()
        monkeypatch.setattr(hub_module, "_hubs", {asyncio.get_running_loop(): hub})
        listening = asyncio.create_task(hub.listener.run())
        taken = []
        async with asyncio.timeout(60):
            tasks = [asyncio.create_task(claim(hub, worker, taken)) for worker in made]
            await asyncio.gather(*(in_a_thread(submit) for _ in range(jobs)))
            await done.wait()
        hub.waiters.close()
        await asyncio.gather(*tasks)
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        assert len(set(taken)) == jobs

    asyncio.run(story())


async def in_a_thread(function, *values):
    """Call the function in a thread of its own, and close that thread's connection."""

    def call():
        try:
            return function(*values)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        return await asyncio.wrap_future(thread.submit(call))
