"""The leases that this worker holds, each with the moment until which it may believe so without the server's word."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from workers.agent.http.wire import LeasePayload

SAFETY_SECONDS = 5.0


def boottime() -> float:
    """Return seconds that go on while the machine is suspended: the server's clock does, and the monotonic one not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseOwner(Protocol):
    """Who works on a lease. Called from the threads of the heartbeat and of the trust window; must not block."""

    def canceled(self, reason: str | None, deadline_seconds: float | None) -> None: ...

    def lost(self, why: str) -> None: ...


@dataclass(eq=False)
class ActiveLease:
    """One lease. `trust_until` moves only with an answer of the server, counted from before the question was sent."""

    lease: LeasePayload
    owner: LeaseOwner
    local_deadline: float
    grace_seconds: float = 2.0
    due: float = 0.0  # when the next heartbeat leaves
    phase: str | None = None  # not told to the server yet, and not to be told before `phase_at`
    phase_at: float = 0.0
    progress: dict[str, Any] | None = None  # not told to the server yet
    failures: int = 0

    def extend(self, sent_at: float) -> None:
        """The server extended the lease some time after `sent_at`."""
        margin = deadline_margin(self.lease.ttl_seconds, self.grace_seconds)
        self.local_deadline = max(self.local_deadline, sent_at + self.lease.ttl_seconds - margin)


def deadline_margin(seconds: float, grace_seconds: float) -> float:
    """How long before the end of a lease of so many seconds its job must be stopped, so that it is dead by then."""
    return min(grace_seconds + SAFETY_SECONDS, seconds / 4)


class ActiveLeases:
    """All leases held, for the threads that watch over them."""

    def __init__(self) -> None:
        self._active: set[ActiveLease] = set()
        self._guard = threading.Lock()

    def add(self, active: ActiveLease) -> None:
        with self._guard:
            self._active.add(active)

    def discard(self, active: ActiveLease) -> None:
        with self._guard:
            self._active.discard(active)

    def all(self) -> list[ActiveLease]:
        with self._guard:
            return list(self._active)
