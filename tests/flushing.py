"""Empties the tables after a test also while processes that the test started still use the database.

TRUNCATE locks every table, one after the other. A scheduler or server in the middle of a transaction has locks in another
order: PostgreSQL then ends one of the two with a deadlock, or TRUNCATE waits longer than its lock timeout. Repeating the
TRUNCATE is harmless, and the other transaction ends by itself.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

from django.db import OperationalError

ATTEMPTS = 30
RETRIED = {"40P01", "55P03"}  # deadlock_detected, lock_not_available
PAUSE_SECONDS = 0.1


def retrying(flush: Callable[..., None]) -> Callable[..., None]:
    """Return `flush` with up to `ATTEMPTS` attempts while another transaction has the locks."""

    @functools.wraps(flush)
    def repeated(*arguments: Any, **options: Any) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                flush(*arguments, **options)
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", None) not in RETRIED or attempt == ATTEMPTS:
                    raise
                time.sleep(PAUSE_SECONDS)
            else:
                return

    return repeated


def install() -> None:
    """Let the tests' database backend repeat its flush."""
    from config.postgres.backend.base import Operations  # noqa: PLC0415 - after the settings

    Operations.execute_sql_flush = retrying(Operations.execute_sql_flush)  # type: ignore[method-assign]
