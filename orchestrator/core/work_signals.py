"""Wakes those who wait for work of a pool.

The unit of work calls these two after the commit. They belong to `pubsub`, which is above `core`, so
`orchestrator.apps` binds them.
"""

from collections.abc import Callable

Receive = Callable[[list[str]], None]

_bound: dict[str, Receive] = {}


def bind(*, wake: Receive, announce: Receive) -> None:
    """Set the functions that wake the long polls of this process, and those of the other processes."""
    _bound.update(wake=wake, announce=announce)


def wake(pools: list[str]) -> None:
    """Wake long polls of this process for the pools in which an operation has queued jobs. Never raises."""
    _bound["wake"](pools)


def announce(pools: list[str]) -> None:
    """Announce to the other processes that these pools have work. Never raises."""
    _bound["announce"](pools)
