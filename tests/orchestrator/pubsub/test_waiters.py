"""The order of attempts: one waiter of a offer, then more where work was found, none forgotten, no notification lost."""

import asyncio
import time

import pytest

from orchestrator.pubsub import waiters as registry_module
from orchestrator.pubsub.waiters import MAX_EMPTY_WAKES, NOTIFIED, POLLING, OfferKey, WaiterRegistry, WakeReason

LINUX, GPU, ELSEWHERE = OfferKey("pool", "1"), OfferKey("pool", "2"), OfferKey("elsewhere", "1")


class Scene:
    """A registry with waiters, each a task; `woken` lists the woken offers with their reasons."""

    def __init__(self):
        self.registry = WaiterRegistry()
        self.registry.add_own_backend(OWN)
        self.disconnected = asyncio.get_running_loop().create_future()
        self.woken = []

    async def enter(self, *offers, seconds=60, notifications=None):
        begun = len(self.registry)
        tasks = [asyncio.create_task(self.wait(offer, seconds, notifications)) for offer in offers]
        await asyncio.sleep(0)
        assert len(self.registry) in {begun, begun + len(offers)}
        return tasks

    async def wait(self, offer, seconds, notifications):
        notifications = self.registry.notifications if notifications is None else notifications
        reason = await self.registry.wait(
            offer, notifications=notifications, seconds=seconds, disconnected=self.disconnected
        )
        self.woken.append((offer, reason))

    async def settled(self):
        for _ in range(5):
            await asyncio.sleep(0)
        woken, self.woken = self.woken, []
        return woken


def played(story):
    """Run the story in a loop of its own; waiters that are left are woken at the end."""

    async def play():
        scene = Scene()
        await story(scene)
        scene.registry.close()
        await scene.settled()
        assert len(scene.registry) == 0

    asyncio.run(play())


def test_a_notification_wakes_one_waiter_of_each_offer_in_its_pool():
    async def story(scene):
        await scene.enter(LINUX, LINUX, LINUX, GPU, GPU, ELSEWHERE)
        scene.registry.notify_pool("pool")
        assert await scene.settled() == [
            (LINUX, WakeReason("notified", MAX_EMPTY_WAKES)),
            (GPU, WakeReason("notified", MAX_EMPTY_WAKES)),
        ]
        scene.registry.notify_pool("without-waiters")
        assert await scene.settled() == []

    played(story)


def test_a_notification_wakes_some_of_many_offers_in_turn(monkeypatch):
    monkeypatch.setattr(registry_module, "OFFERS_AT_ONCE", 2)

    async def story(scene):
        await scene.enter(*[OfferKey("pool", str(offer)) for offer in range(3)] * 2)
        scene.registry.notify_pool("pool")
        assert [offer for offer, _ in await scene.settled()] == [OfferKey("pool", "0"), OfferKey("pool", "1")]
        scene.registry.notify_pool("pool")
        assert [offer for offer, _ in await scene.settled()] == [OfferKey("pool", "2"), OfferKey("pool", "0")]

    played(story)


def test_the_other_offers_are_woken_in_the_next_ticks(monkeypatch):
    monkeypatch.setattr(registry_module, "OFFERS_AT_ONCE", 2)
    monkeypatch.setattr(registry_module, "OFFERS_PER_TICK", 1)

    async def story(scene):
        await scene.enter(*[OfferKey("pool", str(offer)) for offer in range(5)])
        scene.registry.notify_pool("pool")
        await scene.settled()
        woken = []
        for _ in range(4):
            scene.registry.wake_pending_offers()
            woken += [offer for offer, _ in await scene.settled()]
        assert woken == [OfferKey("pool", "2"), OfferKey("pool", "3"), OfferKey("pool", "4")]

    played(story)


def test_a_waiter_that_finds_work_wakes_two_more():
    async def story(scene):
        await scene.enter(*[LINUX] * 3, GPU)
        assert scene.registry.on_work_found(LINUX)
        assert await scene.settled() == [(LINUX, WakeReason("next"))] * 2
        assert scene.registry.on_work_found(LINUX)
        assert len(await scene.settled()) == 1
        assert not scene.registry.on_work_found(LINUX), "no waiter is left"

    played(story)


def test_a_waiter_that_finds_nothing_wakes_the_next_a_limited_number_of_times():
    async def story(scene):
        await scene.enter(*[LINUX] * 10)
        scene.registry.notify_pool("pool")
        attempts = 0
        while woken := await scene.settled():
            ((offer, reason),) = woken
            attempts += 1
            scene.registry.on_empty(offer, reason)
        assert attempts == 1 + MAX_EMPTY_WAKES

    played(story)


def test_a_notification_during_an_attempt_is_not_lost():
    async def story(scene):
        noted = scene.registry.notifications
        scene.registry.notify_pool("elsewhere")
        scene.registry.notify_pool(
            "pool"
        )  # no waiter is registered: the one whose attempt found nothing is not back yet
        await scene.enter(LINUX, notifications=noted)
        assert await scene.settled() == [(LINUX, WakeReason("notified"))]
        await scene.enter(LINUX, notifications=scene.registry.notifications)
        assert await scene.settled() == [], "woken once is enough"

    played(story)


def test_a_notification_that_woke_the_offer_repeats_no_attempt():
    """Otherwise a notification would repeat all attempts under way, and the next one those."""

    async def story(scene):
        noted = scene.registry.notifications
        await scene.enter(LINUX, notifications=noted)
        scene.registry.notify_pool("pool")
        assert len(await scene.settled()) == 1
        await scene.enter(LINUX, notifications=noted)
        assert await scene.settled() == []
        await scene.enter(GPU, notifications=noted)
        assert len(await scene.settled()) == 1, "no waiter of that offer was woken"

    played(story)


def test_a_returned_wake_wakes_the_next_waiter():
    async def story(scene):
        await scene.enter(LINUX, LINUX)
        scene.registry.notify_pool("pool")
        ((offer, reason),) = await scene.settled()
        scene.registry.wake(offer, reason)
        assert await scene.settled() == [(LINUX, reason)]

    played(story)


@pytest.mark.parametrize("interval", [NOTIFIED, POLLING], ids=["notified", "polling"])
def test_without_notifications_a_few_waiters_poll_in_each_tick_the_oldest_first(interval):
    async def story(scene):
        scene.registry.poll_interval = interval
        await scene.enter(*[OfferKey("pool", str(number)) for number in range(20)])
        scene.registry.wake_overdue(min(waiter.since for waiter in scene.registry._waiters) + interval.shortest)
        assert await scene.settled() == []
        now = time.monotonic()
        turns = []
        for _ in range(2):
            scene.registry.wake_overdue(now + interval.longest + 1)
            turns += await scene.settled()
        assert turns == [
            (OfferKey("pool", str(number)), WakeReason("polled")) for number in range(2 * interval.max_per_tick)
        ]

    played(story)


def test_poll_intervals_have_jitter():
    async def story(scene):
        scene.registry.poll_interval = interval = NOTIFIED._replace(max_per_tick=100)
        await scene.enter(*[LINUX] * 50)
        first = min(waiter.since for waiter in scene.registry._waiters)
        scene.registry.wake_overdue(first + (interval.shortest + interval.longest) / 2)
        assert 0 < len(await scene.settled()) < 50

    played(story)


def test_polling_continues_by_itself(monkeypatch):
    monkeypatch.setattr(registry_module, "TICK", 0.001)

    async def story(scene):
        scene.registry.poll_interval = NOTIFIED._replace(shortest=0.0, longest=0.0)
        (waiter,) = await scene.enter(LINUX)
        polling = asyncio.create_task(scene.registry.keep_polling())
        await waiter
        polling.cancel()
        assert scene.woken == [(LINUX, WakeReason("polled"))]

    played(story)


def test_a_wait_ends_with_its_time_and_with_a_disconnect():
    async def story(scene):
        waiters = await scene.enter(LINUX, seconds=0.01)
        await asyncio.gather(*waiters)
        assert await scene.settled() == [(LINUX, None)]
        waiters = await scene.enter(LINUX, GPU)
        scene.disconnected.set_result(None)
        await asyncio.gather(*waiters)
        assert await scene.settled() == [(LINUX, None), (GPU, None)]
        await scene.enter(LINUX)
        assert await scene.settled() == [(LINUX, None)]

    played(story)


def test_a_closed_registry_ends_all_waits_and_begins_none():
    async def story(scene):
        await scene.enter(LINUX, GPU, ELSEWHERE)
        scene.registry.close()
        assert {reason for _, reason in await scene.settled()} == {None}
        await scene.enter(LINUX)
        assert await scene.settled() == [(LINUX, None)]

    played(story)


# --- hand-over of jobs that this process has queued -------------------------------------------------------------------

HANDED = WakeReason("handed_over", MAX_EMPTY_WAKES)
OWN, OTHER = 4711, 4712  # PIDs of database sessions


def test_a_job_of_this_process_wakes_one_waiter_of_each_offer_and_its_notification_wakes_none():
    async def story(scene):
        await scene.enter(LINUX, LINUX, GPU, ELSEWHERE)
        scene.registry.hand_over("pool")
        assert await scene.settled() == [(LINUX, HANDED), (GPU, HANDED)]
        scene.registry.notify_pool("pool", OWN)
        assert await scene.settled() == [], "the attempts that the job caused have not ended"
        scene.registry.notify_pool("pool", OTHER)
        assert await scene.settled() == [(LINUX, WakeReason("notified", MAX_EMPTY_WAKES))], "of another process"

    played(story)


def test_each_of_several_jobs_is_handed_to_another_waiter_in_the_order_of_their_attempts():
    async def story(scene):
        first, second, third = (OfferKey("pool", name) for name in "abc")
        await scene.enter(first, first, second, third)
        for _ in range(2):
            scene.registry.hand_over("pool")
        assert [offer for offer, _ in await scene.settled()] == [first, second, third, first]

    played(story)


def test_a_notification_during_a_handed_over_attempt_that_finds_nothing_repeats_it():
    """The attempt may have begun before the commit that the notification announces."""

    async def story(scene):
        await scene.enter(LINUX)
        scene.registry.hand_over("pool")
        ((_, reason),) = await scene.settled()
        noted = scene.registry.notifications  # the attempt begins
        scene.registry.notify_pool("pool", OWN)
        scene.registry.on_empty(LINUX, reason)
        scene.registry.end_attempt(LINUX, reason, found_work=False)
        await scene.enter(LINUX, notifications=noted)
        assert await scene.settled() == [(LINUX, WakeReason("notified"))]

    played(story)


def test_a_notification_after_the_attempt_wakes_a_waiter():
    async def story(scene):
        await scene.enter(LINUX, LINUX)
        scene.registry.hand_over("pool")
        ((_, reason),) = await scene.settled()
        scene.registry.end_attempt(LINUX, reason, found_work=True)
        scene.registry.notify_pool("pool", OWN)
        assert [found.cause for _, found in await scene.settled()] == ["notified"]

    played(story)


def test_jobs_that_do_not_fit_cause_one_attempt_until_the_offer_finds_work_again():
    async def story(scene):
        await scene.enter(LINUX, GPU)
        scene.registry.hand_over("pool")
        for offer, reason in await scene.settled():
            scene.registry.end_attempt(offer, reason, found_work=offer == LINUX)
        await scene.enter(LINUX, GPU)
        scene.registry.hand_over("pool")
        assert await scene.settled() == [(LINUX, HANDED)]
        scene.registry.notify_pool("pool", OWN)
        ((offer, reason),) = await scene.settled()
        assert (offer, reason.cause) == (GPU, "notified"), "PostgreSQL notifies of jobs that may fit"
        scene.registry.end_attempt(offer, reason, found_work=True)
        await scene.enter(GPU)
        scene.registry.hand_over("pool")
        assert await scene.settled() == [(GPU, HANDED)]

    played(story)


def test_a_woken_waiter_that_is_canceled_wakes_the_next():
    async def story(scene):
        gone, _ = await scene.enter(LINUX, LINUX)
        scene.registry.hand_over("pool")
        gone.cancel()
        assert await scene.settled() == [(LINUX, HANDED)]
        assert scene.registry._handed_over == {LINUX: 1}

    played(story)


def test_a_client_that_disconnects_and_the_end_of_the_time_end_the_wait():
    async def story(scene):
        await scene.enter(LINUX)
        scene.disconnected.set_result(None)
        assert await scene.settled() == [(LINUX, None)]
        scene.disconnected = asyncio.get_running_loop().create_future()
        (waiting,) = await scene.enter(LINUX, seconds=0.001)
        await waiting
        assert scene.woken == [(LINUX, None)]
        assert not scene.registry.has_waiters("pool")

    played(story)
