"""A process passes notifications on to its waiting requests, and polls when they are lost."""

import asyncio

from orchestrator.notifications import hub
from orchestrator.notifications.hub import NotificationHub
from orchestrator.notifications.waiters import NOTIFIED, POLLING

HEARS = True


def test_who_does_not_hear_looks_more_often():
    async def story():
        waking = NotificationHub()
        assert waking.room.patience == POLLING, "until it has heard itself"
        waking.listener.tell(HEARS)
        assert waking.room.patience == NOTIFIED
        waking.listener.tell(not HEARS)
        assert waking.room.patience == POLLING

    asyncio.run(story())


def test_who_hears_again_looks_for_what_was_called_meanwhile():
    async def story():
        waking = NotificationHub()
        gone = asyncio.get_running_loop().create_future()
        waits = [waking.room.wait((pool, 1), calls=0, seconds=60, gone=gone) for pool in ("a", "b")]
        tasks = [asyncio.create_task(wait) for wait in waits]
        await asyncio.sleep(0)
        waking.listener.tell(HEARS)
        assert [(await task).cause for task in tasks] == ["notified"] * 2

    asyncio.run(story())


def test_of_many_finds_at_once_other_processes_are_called_once(monkeypatch):
    called = []

    async def call(_channel, pool):
        called.append(pool)

    monkeypatch.setattr(hub, "call", call)
    monkeypatch.setattr(hub, "CALL_EVERY", 0)

    async def found(waking):
        waking.call_elsewhere("a"), waking.call_elsewhere("a"), waking.call_elsewhere("b")
        for _ in range(3):
            await asyncio.sleep(0)

    async def story():
        waking = NotificationHub()
        await found(waking)
        assert called == ["a", "b"]
        await found(waking)
        assert called == ["a", "b"] * 2
        monkeypatch.setattr(hub, "CALL_EVERY", 3600)
        await found(waking)
        assert called == ["a", "b"] * 2, "their time has not come"

    asyncio.run(story())
