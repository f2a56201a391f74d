"""A process passes notifications on to its waiting requests, and polls when they are lost."""

import asyncio

from orchestrator.pubsub import hub
from orchestrator.pubsub.hub import NotificationHub
from orchestrator.pubsub.waiters import NOTIFIED, POLLING, OfferKey

ALIVE = True


def test_a_process_without_notifications_polls_more_often():
    async def story():
        process = NotificationHub()
        assert process.waiters.poll_interval == POLLING, "until the first echo"
        process.listener.on_status(ALIVE)
        assert process.waiters.poll_interval == NOTIFIED
        process.listener.on_status(not ALIVE)
        assert process.waiters.poll_interval == POLLING

    asyncio.run(story())


def test_a_listener_that_is_alive_again_wakes_all_pools():
    async def story():
        process = NotificationHub()
        disconnected = asyncio.get_running_loop().create_future()
        waits = [
            process.waiters.wait(OfferKey(pool, "1"), notifications=0, seconds=60, disconnected=disconnected)
            for pool in ("a", "b")
        ]
        tasks = [asyncio.create_task(wait) for wait in waits]
        await asyncio.sleep(0)
        process.listener.on_status(ALIVE)
        assert [(await task).cause for task in tasks] == ["notified"] * 2

    asyncio.run(story())


def test_notifications_to_other_processes_are_combined(monkeypatch):
    called = []

    async def notify(_channel, pool):
        called.append(pool)

    monkeypatch.setattr(hub, "send_notification_async", notify)
    monkeypatch.setattr(hub, "NOTIFY_INTERVAL", 0)

    async def found(process):
        process.notify_other_processes("a"), process.notify_other_processes("a"), process.notify_other_processes("b")
        for _ in range(3):
            await asyncio.sleep(0)

    async def story():
        process = NotificationHub()
        await found(process)
        assert called == ["a", "b"]
        await found(process)
        assert called == ["a", "b"] * 2
        monkeypatch.setattr(hub, "NOTIFY_INTERVAL", 3600)
        await found(process)
        assert called == ["a", "b"] * 2, "the interval is not over"

    asyncio.run(story())
