"""Short database queries by code that waits between them: the connection returns to the pool after each query."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.db import connections

P = ParamSpec("P")
R = TypeVar("R")


def release_connection_after(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that the thread's database connection returns to the pool after each call.

    Django does that only at the end of a request. Otherwise ten requests that wait for a minute exhaust the pool.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        finally:
            release_connections()

    return wrapped


def release_connections() -> None:
    """Return the thread's connections to the pool, but those in a transaction, whose owner releases them."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
