"""What a process does with the news that it hears, or does not."""

import asyncio

from orchestrator.waking import process
from orchestrator.waking.process import Waking
from orchestrator.waking.room import DEAF, HEARING

HEARS = True


def test_who_does_not_hear_looks_more_often():
    async def story():
        waking = Waking()
        assert waking.room.patience == DEAF, "until it has heard itself"
        waking.listener.tell(HEARS)
        assert waking.room.patience == HEARING
        waking.listener.tell(not HEARS)
        assert waking.room.patience == DEAF

    asyncio.run(story())


def test_who_hears_again_looks_for_what_was_called_meanwhile():
    async def story():
        waking = Waking()
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

    monkeypatch.setattr(process, "call", call)
    monkeypatch.setattr(process, "CALL_EVERY", 0)

    async def found(waking):
        waking.call_elsewhere("a"), waking.call_elsewhere("a"), waking.call_elsewhere("b")
        for _ in range(3):
            await asyncio.sleep(0)

    async def story():
        waking = Waking()
        await found(waking)
        assert called == ["a", "b"]
        await found(waking)
        assert called == ["a", "b"] * 2
        monkeypatch.setattr(process, "CALL_EVERY", 3600)
        await found(waking)
        assert called == ["a", "b"] * 2, "their time has not come"

    asyncio.run(story())
