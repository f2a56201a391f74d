"""Waits for transactions that no test has begun, and that hide committed events from the readers of the event feed."""

from typing import Any

from django.db import connection

from tests.live_server import eventually


def wait_for_older_transactions() -> None:
    """Wait until each transaction that has begun to write before this call has ended. Not for use in a transaction.

    A page of the feed ends before the oldest one that is open. That may be an analysis by autovacuum, or a notification
    in a session of its own, which had no processor before its commit.
    """
    (end,) = _row("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    eventually(lambda: _row("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= %s", end)[0])


def _row(query: str, *values: object) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return tuple(cursor.fetchone())
