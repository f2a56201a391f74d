"""Changes rows as the owner of the database can: with the triggers switched off that refuse it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction
from django.db.models import QuerySet


@contextmanager
def triggers_off(*tables: str) -> Iterator[None]:
    """Switch off the triggers of these tables for the block, in one transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # no ALTER TABLE while deferred checks wait
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def tamper(table: str, sql: str, values: list[Any] | None = None) -> int:
    """Execute a statement that changes one table past its triggers. Returns the number of rows."""
    with triggers_off(table), connection.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def overwrite_jobs(jobs: QuerySet, **columns: Any) -> None:
    """Set columns of jobs that have ended, which the server never does."""
    with triggers_off("runtime_jobs"):
        jobs.update(**columns)
