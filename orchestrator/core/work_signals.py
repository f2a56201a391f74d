"""Wakes those who wait for work of a pool.

The unit of work calls `wake` and `announce` after the commit. What they call belongs to `pubsub`, which is above
`core`, so `orchestrator.apps` binds it.
"""

from collections.abc import Callable
from typing import Protocol


class PoolAnnouncer(Protocol):
    """Announces pools to the other processes, some of them together."""

    def announce(self, pools: list[str], /) -> None: ...


class _Receivers:
    wake: Callable[[list[str]], None]
    announcer: PoolAnnouncer


def bind(*, wake: Callable[[list[str]], None], announcer: PoolAnnouncer) -> None:
    """Set what wakes the long polls of this process, and those of the other processes."""
    _Receivers.wake, _Receivers.announcer = staticmethod(wake), announcer


def wake(pools: list[str]) -> None:
    """Wake long polls of this process for the pools in which an operation has queued jobs. Never raises."""
    _Receivers.wake(pools)


def announce(pools: list[str]) -> None:
    """Announce to the other processes that these pools have work. Never raises."""
    _Receivers.announcer.announce(pools)
