"""Who waits for work, and who of them looks next. Knows nothing of HTTP or of the database; lives in one event loop.

A call that work has come to a pool wakes one waiter of each kind that waits there, not all of them; of very many kinds
some at once and the others soon. Who then finds work wakes two more, who finds none the next one, a few times: so a
hundred jobs are soon handed out, and one job does not make a thousand look. Calls get lost and kinds are guesses, so
everybody looks again now and then: that makes it right.
"""

import asyncio
import random
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from orchestrator.notifications.metrics import WAITING

OfferKey = tuple[str, int]  # the pool, and what the waiter offers: waiters of one kind can take the same jobs
Line = OrderedDict["Waiter", None]  # who looked longest ago comes first

MISSES = 2  # empty looks of a kind in a row that one call may cost, after the first
FAN_OUT = 2  # whom a waiter that found work wakes
KINDS_AT_ONCE = 16  # woken by one call at once
KINDS_A_TICK = 4  # and of the others, one after the other
TICK = 0.1
REMEMBERED = 10_000  # kinds


class PollInterval(NamedTuple):
    """After how many seconds a waiter looks again though nobody called, and how many may do so in one tick."""

    shortest: float
    longest: float
    at_once: int


NOTIFIED = PollInterval(5.0, 10.0, 1)
POLLING = PollInterval(1.0, 2.0, 5)


class WakeReason(NamedTuple):
    """Why to look: `notified`, `next` (the one before found work) or `polled`; `misses`: how often the next of its kind
    is woken if there was nothing."""

    cause: str
    misses: int = 0


@dataclass(eq=False)
class Waiter:
    kind: OfferKey
    since: float = field(default_factory=time.monotonic)
    haste: float = field(default_factory=random.random)
    woken: "asyncio.Future[WakeReason | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def is_overdue(self, now: float, patience: PollInterval) -> bool:
        return now - self.since > patience.shortest + self.haste * (patience.longest - patience.shortest)


class WaiterRegistry:
    """`calls` counts what was called so far: who noted it before a look sees whether a call came meanwhile."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_closed = False
        self.patience = POLLING
        self._last_call: dict[str, int] = {}
        self._last_heard: dict[OfferKey, int] = {}
        self._kinds: dict[str, OrderedDict[OfferKey, Line]] = {}
        self._everybody: Line = OrderedDict()
        self._untold: OrderedDict[OfferKey, None] = OrderedDict()  # kinds that a call has not reached yet

    def __len__(self) -> int:
        return len(self._everybody)

    async def wait(
        self, kind: OfferKey, *, calls: int, seconds: float, gone: "asyncio.Future[None]"
    ) -> WakeReason | None:
        """Return why to look again, or None: the time is up, the caller has gone, or the room closes.

        `calls`: as they stood before the look that found nothing."""
        if self.is_closed or seconds <= 0 or gone.done():
            return None
        if self._was_missed(kind, calls):
            return WakeReason("notified")
        waiter = Waiter(kind)
        self._enter(waiter)
        try:
            either: set[asyncio.Future[Any]] = {waiter.woken, gone}
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return waiter.woken.result() if waiter.woken.done() else None
        finally:
            self._leave(waiter)

    def call(self, pool: str) -> None:
        """Work has come to the pool."""
        self.calls += 1
        self._last_call[pool] = self.calls
        if len(self._last_heard) > REMEMBERED:
            self._last_heard.clear()  # costs a look too many
        for place, kind in enumerate(list(self._kinds.get(pool, ()))):
            if place < KINDS_AT_ONCE:
                self._tell(kind)
            else:
                self._untold.setdefault(kind)

    def tell_others(self) -> None:
        """Of very many kinds the one that can take the job may be the last."""
        for kind in list(islice(self._untold, KINDS_A_TICK)):
            self._tell(kind)

    def _tell(self, kind: OfferKey) -> None:
        self._untold.pop(kind, None)
        kinds = self._kinds.get(kind[0], OrderedDict())
        if kind not in kinds:  # all of them look; who finds nothing will learn that it was called meanwhile
            return
        kinds.move_to_end(kind)
        self._last_heard[kind] = self.calls
        self.wake(kind, WakeReason("notified", MISSES))

    def _was_missed(self, kind: OfferKey, calls: int) -> bool:
        """Whether a call came during a look that began at `calls`, and nobody of the kind was there to hear it."""
        last = self._last_call.get(kind[0], 0)
        return last > calls and self._last_heard.get(kind, 0) < last

    def call_everywhere(self) -> None:
        """Anything may have happened meanwhile."""
        for pool in list(self._kinds):
            self.call(pool)

    def wake(self, kind: OfferKey, wake: WakeReason) -> bool:
        """Wake who of this kind looked longest ago. Returns whether there was anybody."""
        line = self._kinds.get(kind[0], OrderedDict()).get(kind)
        if not line:
            return False
        self._rouse(next(iter(line)), wake)
        return True

    def found(self, kind: OfferKey) -> bool:
        """Somebody found work: where it was may be more. Returns whether anybody is there to look for it."""
        woken = [self.wake(kind, WakeReason("next")) for _ in range(FAN_OUT)]
        return any(woken)

    def missed(self, kind: OfferKey, wake: WakeReason) -> None:
        """Somebody was woken and found nothing: that may be his own fault, so others try."""
        if wake.misses:
            self.wake(kind, WakeReason(wake.cause, wake.misses - 1))

    def hand_back(self, kind: OfferKey, wake: WakeReason) -> None:
        """Who was woken cannot look any more: the next one does in his place."""
        self.wake(kind, wake)

    def wake_overdue(self, now: float) -> None:
        """Let those look again who looked long ago: a few at a time, however many they are."""
        line = islice(self._everybody, 8 * self.patience.at_once)
        overdue = [waiter for waiter in line if waiter.is_overdue(now, self.patience)]
        for waiter in overdue[: self.patience.at_once]:
            self._rouse(waiter, WakeReason("polled"))

    async def keep_polling(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.tell_others()
            self.wake_overdue(time.monotonic())

    def close(self) -> None:
        """Send everybody home, and let nobody wait any more."""
        self.is_closed = True
        for waiter in list(self._everybody):
            self._rouse(waiter, None)

    def _rouse(self, waiter: Waiter, wake: WakeReason | None) -> None:
        self._leave(waiter)
        if not waiter.woken.done():
            waiter.woken.set_result(wake)

    def _enter(self, waiter: Waiter) -> None:
        kinds = self._kinds.setdefault(waiter.kind[0], OrderedDict())
        kinds.setdefault(waiter.kind, OrderedDict())[waiter] = None
        self._everybody[waiter] = None
        WAITING.set(len(self))

    def _leave(self, waiter: Waiter) -> None:
        if waiter not in self._everybody:
            return
        del self._everybody[waiter]
        kinds = self._kinds[waiter.kind[0]]
        del kinds[waiter.kind][waiter]
        if not kinds[waiter.kind]:
            del kinds[waiter.kind]
        if not kinds:
            del self._kinds[waiter.kind[0]]
        WAITING.set(len(self))
