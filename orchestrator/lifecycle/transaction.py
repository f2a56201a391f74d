"""One verb, one transaction; a deadlock or a serialization failure is tried again, because nothing of it remained."""

import functools
import random
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.db import OperationalError, transaction

P = ParamSpec("P")
R = TypeVar("R")

TRIES = 4
_TRY_AGAIN = frozenset({"40P01", "40001"})


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """Run in a transaction of its own (durable: never inside another) and repeat it when PostgreSQL gave it up."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for tried in range(1, TRIES + 1):
            try:
                with transaction.atomic(durable=True):
                    return function(*args, **kwargs)
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", None) not in _TRY_AGAIN or tried == TRIES:
                    raise
                time.sleep(random.uniform(0, 0.05 * tried))  # noqa: S311 jitter, not a secret
        raise AssertionError  # the loop returns or raises

    return run
