"""The leases of this worker, each with a local deadline: until then the worker may assume that the lease is valid."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from workers.agent.http.wire import LeasePayload

SAFETY_SECONDS = 5.0


def boottime() -> float:
    """Return the seconds of CLOCK_BOOTTIME, which advances during suspend, as the server's clock does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseOwner(Protocol):
    """The job of a lease. Called by the threads of the heartbeat and the watchdog; must not block."""

    def canceled(self, reason: str | None, deadline_seconds: float | None) -> None: ...

    def lost(self, reason: str) -> None: ...

    def extended(self, deadline: float) -> None: ...


@dataclass(eq=False)
class ActiveLease:
    """One lease. Only a response of the server moves `local_deadline`, counted from before the request was sent."""

    lease: LeasePayload
    owner: LeaseOwner
    local_deadline: float
    grace_seconds: float = 2.0
    due: float = 0.0  # when the next heartbeat leaves
    phase: str | None = None  # not reported yet, and not before `phase_at`
    phase_at: float = 0.0
    progress: dict[str, Any] | None = None  # not reported yet
    failures: int = 0

    def extend(self, sent_at: float) -> None:
        """Move the local deadline: the server extended the lease some time after `sent_at`.

        The owner gets a later one, for a worker that does not act at its local deadline because it is stopped.
        """
        margin = deadline_margin(self.lease.ttl_seconds, self.grace_seconds)
        self.local_deadline = max(self.local_deadline, sent_at + self.lease.ttl_seconds - margin)
        self.owner.extended(self.local_deadline + margin / 2)


def deadline_margin(seconds: float, grace_seconds: float) -> float:
    """Return how many seconds before the end of a lease its job must be stopped, so that it has ended by then."""
    return min(grace_seconds + SAFETY_SECONDS, seconds / 4)


class ActiveLeases:
    """All leases of the worker, for the threads that watch them."""

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
