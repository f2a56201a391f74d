"""One verb, one transaction; a deadlock or a serialization failure is tried again, because nothing of it remained."""

import functools
import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from django.db import OperationalError, transaction

from leases.lanes import Ending

P = ParamSpec("P")
R = TypeVar("R")

TRIES = 4
_TRY_AGAIN = frozenset({"40P01", "40001"})

_ending: ContextVar[Ending] = ContextVar("ending")


def ending() -> Ending:
    """What this verb will tell the lanes as its last statement: their rows are locked for as short as can be."""
    return _ending.get()


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """Run in a transaction of its own (durable: never inside another) and repeat it when PostgreSQL gave it up."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for tried in range(1, TRIES + 1):
            try:
                with transaction.atomic(durable=True):
                    return _ended(function, args, kwargs)
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", None) not in _TRY_AGAIN or tried == TRIES:
                    raise
                time.sleep(random.uniform(0, 0.05 * tried))  # noqa: S311 jitter, not a secret
        raise AssertionError  # the loop returns or raises

    return run


def _ended(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    before = _ending.set(Ending())
    try:
        result = function(*args, **kwargs)
        ending().tell()
        return result
    finally:
        _ending.reset(before)
