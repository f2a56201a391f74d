"""Short looks at the database by what waits between them: the connection goes back to the pool after each."""

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

P = ParamSpec("P")
R = TypeVar("R")


def release_connection_after(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, which gives its thread's connection back. Django itself does that only when a request has
    ended: what waits for a minute would hold one for a minute, and ten of them all that there are."""

    @functools.wraps(function)
    def look(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        finally:
            _give_back()

    return look


def _give_back() -> None:
    """A transaction around the look is its caller's business."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def run_query_async(function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """A brief look for code that runs in the event loop."""
    return sync_to_async(release_connection_after(function))
