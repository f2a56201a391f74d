"""Registry of the long polls that wait for work in one event loop, and the order in which they are woken.

A notification for a pool wakes one waiter for each distinct offer in that pool. With many distinct offers, some are
woken at once and the others a few at a time. A woken waiter that finds work wakes two more. One that finds none wakes
the next waiter with the same offer, MAX_EMPTY_WAKES times at most. So a hundred jobs are distributed within a few
rounds, and one job does not cause a thousand attempts. Notifications may be lost, and an offer only approximates which
jobs fit. Therefore each waiter also polls at intervals.

The module depends on neither HTTP nor the database.
"""

import asyncio
import random
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from orchestrator.pubsub.metrics import WAITING

MAX_EMPTY_WAKES = 2  # further waiters of an offer that one notification wakes while each finds nothing
FAN_OUT = 2  # waiters that are woken after one found work
OFFERS_AT_ONCE = 16  # woken immediately by one notification
OFFERS_PER_TICK = 4  # of the others
TICK = 0.1  # seconds
MAX_REMEMBERED_OFFERS = 10_000
MAX_OWN_BACKENDS = 1_000  # a connection of the pool is replaced after half an hour
HANDED_OVER = "handed_over"


class OfferKey(NamedTuple):
    """Identifies waiters that can take the same jobs: equal pool, and equal digest of what they offer."""

    pool: str
    digest: str


Queue = OrderedDict["Waiter", None]  # the waiter whose last attempt is oldest comes first


class PollInterval(NamedTuple):
    """Polling without a notification: the range of seconds between two attempts of a waiter, and the limit per tick."""

    shortest: float
    longest: float
    max_per_tick: int


NOTIFIED = PollInterval(5.0, 10.0, 1)  # while notifications arrive
POLLING = PollInterval(1.0, 2.0, 5)  # while they do not


class WakeReason(NamedTuple):
    """The reason for an attempt.

    Attributes:
        cause: `first`, `handed_over` (this process has queued a job), `notified`, `next` (after another waiter found
            work) or `polled`; a label of a metric.
        empty_wakes_left: How many further waiters are woken in turn if this one finds nothing.
    """

    cause: str
    empty_wakes_left: int = 0


@dataclass(eq=False)
class Waiter:
    """One waiting long poll."""

    offer: OfferKey
    since: float = field(default_factory=time.monotonic)
    jitter: float = field(default_factory=random.random)  # 0 to 1: its place in the range of the poll interval
    woken: "asyncio.Future[WakeReason | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def wake(self, reason: WakeReason | None) -> None:
        """End the wait, if nothing has ended it yet."""
        if not self.woken.done():
            self.woken.set_result(reason)

    def is_overdue(self, now: float, interval: PollInterval) -> bool:
        """Return whether the waiter has waited for longer than its poll interval."""
        return now - self.since > interval.shortest + self.jitter * (interval.longest - interval.shortest)


class WaiterRegistry:
    """The waiters of one event loop.

    Attributes:
        notifications: Number of notifications so far. A long poll reads it before an attempt; a larger number
            afterwards shows that a notification arrived during the attempt.
        is_closed: No long poll may wait any more.
        poll_interval: NOTIFIED or POLLING.
    """

    def __init__(self) -> None:
        self.notifications = 0
        self.is_closed = False
        self.poll_interval = POLLING
        self._last_notification: dict[str, int] = {}  # by pool
        self._last_wake: dict[OfferKey, int] = {}  # the notification by which a waiter of the offer was woken last
        self._offers: dict[str, OrderedDict[OfferKey, Queue]] = {}  # by pool
        self._waiters: Queue = OrderedDict()
        self._pending_offers: OrderedDict[OfferKey, None] = OrderedDict()  # to be woken in the next ticks
        self._handed_over: Counter[OfferKey] = Counter()  # attempts after `hand_over` that have not ended
        self._unfit: set[OfferKey] = set()  # the last attempt after `hand_over` found nothing
        self._own_backends: set[int] = set()  # PIDs of the database sessions that announced jobs of this process

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(
        self, offer: OfferKey, *, notifications: int, seconds: float, disconnected: "asyncio.Future[None]"
    ) -> WakeReason | None:
        """Wait for a reason to try again.

        Args:
            offer: What the worker offers.
            notifications: The value of `notifications` before the attempt that found nothing.
            seconds: The longest wait.
            disconnected: Done once the client has disconnected.

        Returns:
            The reason, or None: the time is up, the client disconnected, or the registry was closed.
        """
        if self.is_closed or seconds <= 0 or disconnected.done():
            return None
        if self._has_missed_notification(offer, notifications):
            return WakeReason("notified")
        waiter = Waiter(offer)
        self._add(waiter)

        def end(_disconnected: object = None) -> None:
            waiter.wake(None)

        # One future, and no `asyncio.wait`: the attempt begins in the next turn of the loop.
        disconnected.add_done_callback(end)
        timer = asyncio.get_running_loop().call_later(seconds, end)
        try:
            return await waiter.woken
        except asyncio.CancelledError:
            if waiter.woken.done() and not waiter.woken.cancelled() and (reason := waiter.woken.result()):
                self.wake(offer, reason)
                self.end_attempt(offer, reason)
            raise
        finally:
            timer.cancel()
            disconnected.remove_done_callback(end)
            self._remove(waiter)

    def has_waiters(self, pool: str) -> bool:
        """Return whether a waiter could be woken for the pool. In any thread."""
        return pool in self._offers

    def hand_over(self, pool: str) -> None:
        """Wake a waiter for each offer in the pool, because this process has queued a job there.

        Args:
            pool: The pool of the job.
        """
        if len(self._unfit) >= MAX_REMEMBERED_OFFERS:
            self._unfit.clear()  # costs one unnecessary attempt for each
        offers = self._offers.get(pool, OrderedDict())
        for offer in list(islice((offer for offer in offers if offer not in self._unfit), OFFERS_AT_ONCE)):
            offers.move_to_end(offer)
            self.wake(offer, WakeReason(HANDED_OVER, MAX_EMPTY_WAKES))

    def add_own_backend(self, backend: int) -> None:
        """Remember a database session that announces jobs of this process. In any thread.

        Args:
            backend: The PID of the session, before it notifies.
        """
        if len(self._own_backends) >= MAX_OWN_BACKENDS:
            self._own_backends.clear()  # costs one unnecessary attempt for each
        self._own_backends.add(backend)

    def end_attempt(self, offer: OfferKey, reason: WakeReason, *, found_work: bool | None = None) -> None:
        """Record the end of a woken attempt: exactly once for each reason that `wait` has returned.

        Args:
            offer: What the worker offers.
            reason: What woke the attempt.
            found_work: Whether it got a job; None if that is unknown.
        """
        if found_work:
            self._unfit.discard(offer)
        if reason.cause != HANDED_OVER:
            return
        self._handed_over[offer] -= 1
        if not self._handed_over[offer]:
            del self._handed_over[offer]
        if found_work is False:
            # Else each queued job that does not fit this offer would cause an attempt without result. Until the offer
            # finds work again, `hand_over` leaves it out, and only notifications and polling wake it.
            self._unfit.add(offer)

    def notify_pool(self, pool: str, backend: int = 0) -> None:
        """Wake one waiter for each offer in the pool, because the pool has work.

        Args:
            pool: The pool.
            backend: The PID of the database session that sent the notification; 0 if it is unknown.
        """
        is_own = backend in self._own_backends
        self.notifications += 1
        self._last_notification[pool] = self.notifications
        if len(self._last_wake) > MAX_REMEMBERED_OFFERS:
            self._last_wake.clear()  # costs one unnecessary attempt for each offer
        for position, offer in enumerate(list(self._offers.get(pool, ()))):
            if is_own and self._handed_over[offer]:
                continue
            if position < OFFERS_AT_ONCE:
                self._wake_offer(offer)
            else:
                self._pending_offers.setdefault(offer)

    def notify_all_pools(self) -> None:
        """Wake waiters of every pool, because notifications may have been lost."""
        for pool in list(self._offers):
            self.notify_pool(pool)

    def wake_pending_offers(self) -> None:
        """Wake waiters of the next OFFERS_PER_TICK offers that a notification has not reached yet.

        Of very many offers the only one that fits the job may be the last.
        """
        for offer in list(islice(self._pending_offers, OFFERS_PER_TICK)):
            self._wake_offer(offer)

    def _wake_offer(self, offer: OfferKey) -> None:
        self._pending_offers.pop(offer, None)
        offers = self._offers.get(offer.pool, OrderedDict())
        if offer not in offers:  # all its workers are in an attempt: `_has_missed_notification` wakes them
            return
        offers.move_to_end(offer)
        self._last_wake[offer] = self.notifications
        self.wake(offer, WakeReason("notified", MAX_EMPTY_WAKES))

    def _has_missed_notification(self, offer: OfferKey, notifications: int) -> bool:
        """Return whether a notification arrived during the attempt and woke no waiter with this offer."""
        last = self._last_notification.get(offer.pool, 0)
        return last > notifications and self._last_wake.get(offer, 0) < last

    def wake(self, offer: OfferKey, reason: WakeReason) -> bool:
        """Wake the waiter of this offer whose last attempt is oldest. Returns whether there was one.

        Also called in place of a woken waiter whose client has disconnected, with the reason of that one.
        """
        queue = self._offers.get(offer.pool, OrderedDict()).get(offer)
        if not queue:
            return False
        self._wake_waiter(next(iter(queue)), reason)
        return True

    def on_work_found(self, offer: OfferKey) -> bool:
        """Wake FAN_OUT more waiters of the offer, because there may be more work. Returns whether there was one."""
        woken = [self.wake(offer, WakeReason("next")) for _ in range(FAN_OUT)]
        return any(woken)

    def on_empty(self, offer: OfferKey, reason: WakeReason) -> None:
        """Wake the next waiter of the offer after a woken one found nothing, as often as the reason allows.

        The job may not fit that worker for a cause that its offer does not show.
        """
        if reason.empty_wakes_left:
            self.wake(offer, WakeReason(reason.cause, reason.empty_wakes_left - 1))

    def wake_overdue(self, now: float) -> None:
        """Wake the waiters whose poll interval is over, a limited number in one tick."""
        candidates = islice(self._waiters, 8 * self.poll_interval.max_per_tick)
        overdue = [waiter for waiter in candidates if waiter.is_overdue(now, self.poll_interval)]
        for waiter in overdue[: self.poll_interval.max_per_tick]:
            self._wake_waiter(waiter, WakeReason("polled"))

    async def keep_polling(self) -> None:
        """Wake pending offers and overdue waiters at each tick, for ever."""
        while True:
            await asyncio.sleep(TICK)
            self.wake_pending_offers()
            self.wake_overdue(time.monotonic())

    def close(self) -> None:
        """End all waits, and let no new one begin."""
        self.is_closed = True
        for waiter in list(self._waiters):
            self._wake_waiter(waiter, None)

    def _wake_waiter(self, waiter: Waiter, reason: WakeReason | None) -> None:
        self._remove(waiter)
        if reason is not None and reason.cause == HANDED_OVER and not waiter.woken.done():
            self._handed_over[waiter.offer] += 1
        waiter.wake(reason)

    def _add(self, waiter: Waiter) -> None:
        offers = self._offers.setdefault(waiter.offer.pool, OrderedDict())
        offers.setdefault(waiter.offer, OrderedDict())[waiter] = None
        self._waiters[waiter] = None
        WAITING.set(len(self))

    def _remove(self, waiter: Waiter) -> None:
        if waiter not in self._waiters:
            return
        del self._waiters[waiter]
        offers = self._offers[waiter.offer.pool]
        del offers[waiter.offer][waiter]
        if not offers[waiter.offer]:
            del offers[waiter.offer]
        if not offers:
            del self._offers[waiter.offer.pool]
        WAITING.set(len(self))
