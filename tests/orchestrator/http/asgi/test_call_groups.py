"""Groups of calls: what comes while one runs is the next one, in turns of clients."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from orchestrator.http.asgi import call_groups
from orchestrator.http.asgi.call_groups import CallGroup
from orchestrator.http.asgi.thread_pools import ThreadPool


class Groups:
    """A group whose first run waits until it is let go, and what ran together."""

    def __init__(self, answer: Callable[[Any], Any] = str) -> None:
        self.ran: list[list[Any]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.threads = ThreadPool("test", threads=1, queue=0)
        self.group: CallGroup[Any, Any] = CallGroup("test", self.run, self.threads)
        self._answer = answer

    def run(self, calls: Sequence[Any]) -> list[Any]:
        self.ran.append(list(calls))
        self.begun.set()
        assert self.go_on.wait(30)
        return [self._answer(call) for call in calls]

    async def occupied(self) -> "asyncio.Task[Any]":
        """Return a call that runs, so that others wait."""
        first = asyncio.create_task(self.group.answer("first", "someone"))
        await asyncio.get_running_loop().run_in_executor(None, self.begun.wait, 30)
        return first


def story(tell: Callable[[Groups], Coroutine[Any, Any, None]], **terms: Any) -> Groups:
    groups = Groups(**terms)
    try:
        asyncio.run(asyncio.wait_for(tell(groups), 60))
    finally:
        groups.go_on.set()
        groups.threads.executor.shutdown()
    return groups


def test_a_call_by_itself_runs_at_once_and_what_comes_meanwhile_is_the_next_group():
    async def tell(groups: Groups) -> None:
        first = await groups.occupied()
        later = [asyncio.create_task(groups.group.answer(number, number % 3)) for number in range(7)]
        await asyncio.sleep(0)
        groups.go_on.set()
        assert await first == "first"
        assert await asyncio.gather(*later) == [str(number) for number in range(7)], "each has its own answer"
        assert await groups.group.answer("alone", 0) == "alone"

    ran = story(tell).ran
    assert [sorted(map(str, group)) for group in ran] == [["first"], list("0123456"), ["alone"]]


def test_clients_take_turns_and_a_group_is_bounded(monkeypatch):
    monkeypatch.setattr(call_groups, "MAX_GROUP", 4)

    async def tell(groups: Groups) -> None:
        first = await groups.occupied()
        calls = [asyncio.create_task(groups.group.answer(("flood", number), "flood")) for number in range(6)]
        calls.append(asyncio.create_task(groups.group.answer(("other", 0), "other")))
        await asyncio.sleep(0)
        groups.go_on.set()
        await asyncio.gather(first, *calls)

    assert story(tell).ran[1:] == [
        [("flood", 0), ("other", 0), ("flood", 1), ("flood", 2)],
        [("flood", 3), ("flood", 4), ("flood", 5)],
    ]


def test_a_group_is_bounded_by_the_size_of_its_bodies(monkeypatch):
    monkeypatch.setattr(call_groups, "MAX_GROUP_BYTES", 10)

    async def tell(groups: Groups) -> None:
        first = await groups.occupied()
        calls = [asyncio.create_task(groups.group.answer(number, number, size=6)) for number in range(5)]
        await asyncio.sleep(0)
        groups.go_on.set()
        await asyncio.gather(first, *calls)

    assert story(tell).ran[1:] == [[0, 1], [2, 3], [4]]


def test_a_client_has_a_bound_of_its_own(monkeypatch):
    monkeypatch.setattr(call_groups, "MAX_WAITING_PER_CLIENT", 2)
    monkeypatch.setattr(call_groups, "MAX_WAITING", 3)

    async def tell(groups: Groups) -> None:
        first = await groups.occupied()
        calls = [asyncio.create_task(groups.group.answer(number, "flood")) for number in range(2)]
        await asyncio.sleep(0)
        assert (groups.group.is_full("flood"), groups.group.is_full("other")) == (True, False)
        calls.append(asyncio.create_task(groups.group.answer(2, "other")))
        await asyncio.sleep(0)
        assert groups.group.is_full("third"), "all clients together have one, too"
        groups.go_on.set()
        await asyncio.gather(first, *calls)
        assert not groups.group.is_full("flood")

    story(tell)


def test_a_call_that_was_canceled_does_not_run():
    async def tell(groups: Groups) -> None:
        first = await groups.occupied()
        gone, kept = (asyncio.create_task(groups.group.answer(name, name)) for name in ("gone", "kept"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        groups.go_on.set()
        assert (await first, await kept) == ("first", "kept")
        assert gone.cancelled()

    assert story(tell).ran == [["first"], ["kept"]]


def test_a_failure_of_the_group_reaches_each_caller_and_the_next_group_runs():
    def answer(call: Any) -> str:
        if call == "bad":
            raise KeyError(call)
        return str(call)

    async def tell(groups: Groups) -> None:
        groups.go_on.set()
        with pytest.raises(KeyError):
            await groups.group.answer("bad", 1)
        assert await groups.group.answer("good", 1) == "good"

    story(tell, answer=answer)
