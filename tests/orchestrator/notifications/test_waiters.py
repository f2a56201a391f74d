"""The order of attempts: one waiter of a kind, then more where work was found, none forgotten, no notification lost."""

import asyncio
import time

import pytest

from orchestrator.notifications import waiters as rooms
from orchestrator.notifications.waiters import MISSES, NOTIFIED, POLLING, WaiterRegistry, WakeReason

LINUX, GPU, ELSEWHERE = ("pool", 1), ("pool", 2), ("elsewhere", 1)


class Scene:
    """A room with waiters, each a task; `woken` has who was woken so far, and why."""

    def __init__(self):
        self.room = WaiterRegistry()
        self.gone = asyncio.get_running_loop().create_future()
        self.woken = []

    async def enter(self, *kinds, seconds=60, calls=None):
        begun = len(self.room)
        tasks = [asyncio.create_task(self.wait(kind, seconds, calls)) for kind in kinds]
        await asyncio.sleep(0)
        assert len(self.room) in {begun, begun + len(kinds)}
        return tasks

    async def wait(self, kind, seconds, calls):
        calls = self.room.calls if calls is None else calls
        wake = await self.room.wait(kind, calls=calls, seconds=seconds, gone=self.gone)
        self.woken.append((kind, wake))

    async def settled(self):
        for _ in range(5):
            await asyncio.sleep(0)
        woken, self.woken = self.woken, []
        return woken


def played(story):
    """Run the story in a loop of its own; waiters that are left go home."""

    async def play():
        scene = Scene()
        await story(scene)
        scene.room.close()
        await scene.settled()
        assert len(scene.room) == 0

    asyncio.run(play())


def test_a_call_wakes_one_of_each_kind_in_its_pool():
    async def story(scene):
        await scene.enter(LINUX, LINUX, LINUX, GPU, GPU, ELSEWHERE)
        scene.room.call("pool")
        assert await scene.settled() == [(LINUX, WakeReason("notified", MISSES)), (GPU, WakeReason("notified", MISSES))]
        scene.room.call("nobody-there")
        assert await scene.settled() == []

    played(story)


def test_of_very_many_kinds_a_call_wakes_some_in_turns(monkeypatch):
    monkeypatch.setattr(rooms, "KINDS_AT_ONCE", 2)

    async def story(scene):
        await scene.enter(*[("pool", kind) for kind in range(3)] * 2)
        scene.room.call("pool")
        assert [kind for kind, _ in await scene.settled()] == [("pool", 0), ("pool", 1)]
        scene.room.call("pool")
        assert [kind for kind, _ in await scene.settled()] == [("pool", 2), ("pool", 0)]

    played(story)


def test_of_very_many_kinds_each_hears_of_one_call_before_long(monkeypatch):
    monkeypatch.setattr(rooms, "KINDS_AT_ONCE", 2)
    monkeypatch.setattr(rooms, "KINDS_A_TICK", 1)

    async def story(scene):
        await scene.enter(*[("pool", kind) for kind in range(5)])
        scene.room.call("pool")
        await scene.settled()
        heard = []
        for _ in range(4):
            scene.room.tell_others()
            heard += [kind for kind, _ in await scene.settled()]
        assert heard == [("pool", 2), ("pool", 3), ("pool", 4)]

    played(story)


def test_who_found_work_wakes_two_more_of_his_kind():
    async def story(scene):
        await scene.enter(*[LINUX] * 3, GPU)
        assert scene.room.found(LINUX)
        assert await scene.settled() == [(LINUX, WakeReason("next"))] * 2
        assert scene.room.found(LINUX)
        assert len(await scene.settled()) == 1
        assert not scene.room.found(LINUX), "nobody is left, and the caller is told"

    played(story)


def test_who_found_nothing_lets_a_few_others_try_and_then_it_is_quiet():
    async def story(scene):
        await scene.enter(*[LINUX] * 10)
        scene.room.call("pool")
        looks = 0
        while woken := await scene.settled():
            ((kind, wake),) = woken
            looks += 1
            scene.room.missed(kind, wake)
        assert looks == 1 + MISSES

    played(story)


def test_a_call_that_comes_while_all_look_is_not_lost():
    async def story(scene):
        noted = scene.room.calls
        scene.room.call("elsewhere")
        scene.room.call("pool")  # no waiter is registered: the one whose attempt found nothing is not back yet
        await scene.enter(LINUX, calls=noted)
        assert await scene.settled() == [(LINUX, WakeReason("notified"))]
        await scene.enter(LINUX, calls=scene.room.calls)
        assert await scene.settled() == [], "heard once is enough"

    played(story)


def test_a_call_that_one_of_the_kind_has_heard_sends_nobody_else_to_look():
    """Otherwise a notification would repeat all attempts under way, and the next one those."""

    async def story(scene):
        noted = scene.room.calls
        await scene.enter(LINUX, calls=noted)
        scene.room.call("pool")
        assert len(await scene.settled()) == 1
        await scene.enter(LINUX, calls=noted)
        assert await scene.settled() == []
        await scene.enter(GPU, calls=noted)
        assert len(await scene.settled()) == 1, "of another kind, which nobody has heard it for"

    played(story)


def test_who_cannot_look_any_more_hands_the_call_back():
    async def story(scene):
        await scene.enter(LINUX, LINUX)
        scene.room.call("pool")
        ((kind, wake),) = await scene.settled()
        scene.room.hand_back(kind, wake)
        assert await scene.settled() == [(LINUX, wake)]

    played(story)


@pytest.mark.parametrize("patience", [NOTIFIED, POLLING], ids=["hearing", "deaf"])
def test_without_any_call_a_few_look_at_a_time_the_longest_waiting_first(patience):
    async def story(scene):
        scene.room.patience = patience
        await scene.enter(*[("pool", number) for number in range(20)])
        now = time.monotonic()
        scene.room.wake_overdue(now)
        assert await scene.settled() == []
        turns = []
        for _ in range(2):
            scene.room.wake_overdue(now + patience.longest + 1)
            turns += await scene.settled()
        assert turns == [(("pool", number), WakeReason("polled")) for number in range(2 * patience.at_once)]

    played(story)


def test_they_do_not_march_in_step():
    async def story(scene):
        scene.room.patience = patience = NOTIFIED._replace(at_once=100)
        await scene.enter(*[LINUX] * 50)
        now = time.monotonic()
        scene.room.wake_overdue(now + (patience.shortest + patience.longest) / 2)
        assert 0 < len(await scene.settled()) < 50

    played(story)


def test_polling_goes_on_by_itself(monkeypatch):
    monkeypatch.setattr(rooms, "TICK", 0.001)

    async def story(scene):
        scene.room.patience = NOTIFIED._replace(shortest=0.0, longest=0.0)
        (waiter,) = await scene.enter(LINUX)
        polling = asyncio.create_task(scene.room.keep_polling())
        await waiter
        polling.cancel()
        assert scene.woken == [(LINUX, WakeReason("polled"))]

    played(story)


def test_nobody_waits_longer_than_he_wants_nor_after_he_has_gone():
    async def story(scene):
        waiters = await scene.enter(LINUX, seconds=0.01)
        await asyncio.gather(*waiters)
        assert await scene.settled() == [(LINUX, None)]
        waiters = await scene.enter(LINUX, GPU)
        scene.gone.set_result(None)
        await asyncio.gather(*waiters)
        assert await scene.settled() == [(LINUX, None), (GPU, None)]
        await scene.enter(LINUX)
        assert await scene.settled() == [(LINUX, None)]

    played(story)


def test_a_room_that_closes_sends_everybody_home_and_takes_nobody_in():
    async def story(scene):
        await scene.enter(LINUX, GPU, ELSEWHERE)
        scene.room.close()
        assert {wake for _, wake in await scene.settled()} == {None}
        await scene.enter(LINUX)
        assert await scene.settled() == [(LINUX, None)]

    played(story)
