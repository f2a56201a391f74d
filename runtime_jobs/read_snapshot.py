"""Transactions that read much in one snapshot, within a limit of time.

While a snapshot is open, PostgreSQL removes no row that ended after it. Claims read those rows of the queue again and
again (docs/performance.md, "Open transactions").
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connection, transaction

from runtime_jobs.db_errors import QUERY_CANCELED, sqlstate_of


class SnapshotTimeout(Exception):
    """The snapshot was open for as long as permitted."""


@contextmanager
def read_snapshot(max_seconds: float) -> Iterator[None]:
    """Read all rows in one snapshot; a caller's transaction has its own.

    Args:
        max_seconds: No statement begins after this time, and none takes longer.

    Raises:
        SnapshotTimeout: The time is over.
    """
    deadline = time.monotonic() + max_seconds
    timeout = SnapshotTimeout(f"The snapshot was open for {max_seconds:g} seconds (SNAPSHOT_SECONDS).")

    def execute_in_time(execute: Callable[..., Any], *statement: Any) -> Any:
        if time.monotonic() > deadline:
            raise timeout
        return execute(*statement)

    is_alone = not connection.in_atomic_block
    with transaction.atomic():
        if is_alone:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
                    cursor.execute("SELECT set_config(%s, %s, true)", [name, f"{int(max_seconds * 1000)}ms"])
        try:
            with connection.execute_wrapper(execute_in_time):
                yield
        except OperationalError as error:
            if is_alone and sqlstate_of(error) == QUERY_CANCELED:
                raise timeout from error
            raise
