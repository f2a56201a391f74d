"""Nothing lost: every row of every table is as it was."""

import contextlib
import functools
from collections.abc import Iterator

from django.apps import apps
from django.db import connection

# `last_seen_at` of a worker may change with any call it makes, also with one that is refused.
_NOT_COMPARED = "last_seen_at"
# How many jobs an organization may still submit, and how many requests a client has sent, is counted also by a request
# that is refused. A process reports its open channels by itself.
_COUNTED = {"submit_quotas", "request_windows", "runner_channels"}


@functools.cache
def _question() -> str:
    tables = sorted({model._meta.db_table for model in apps.get_models()} - _COUNTED)
    row = f"(to_jsonb(t) - '{_NOT_COMPARED}')::text"
    return " UNION ALL ".join(
        f"SELECT '{table}', string_agg({row}, E'\\n' ORDER BY {row}) FROM \"{table}\" t" for table in tables
    )


def images() -> dict[str, str]:
    """Each table's rows as one text."""
    with connection.cursor() as cursor:
        cursor.execute(_question())
        return dict(cursor.fetchall())


@contextlib.contextmanager
def nothing_lost() -> Iterator[None]:
    """The block may read, and be refused, but leaves every row as it was."""
    before = images()
    yield
    after = images()
    assert {table for table in before if before[table] != after[table]} == set()
