"""Empties the tables after a test that commits, also while processes that the test started still use the database.

Django's own way is one TRUNCATE of all tables and a `post_migrate` that writes the permissions again. It creates and
deletes some 500 files. Few tests leave more than a hundred rows, and deleting those takes a tenth of the time.
"""

import functools
import time
from collections.abc import Callable

from django.db import OperationalError, connection, transaction

ATTEMPTS = 30
RETRIED = {"40P01", "55P03"}  # deadlock_detected, lock_not_available
PAUSE_SECONDS = 0.1
# `migrate` writes the rows of these, and no test changes them.
KEPT = {"django_content_type", "auth_permission"}
# A larger table is truncated, with all others: a DELETE reads every page, and leaves it for the next test to read.
MAX_BYTES = 4 << 20

# A writer whose transaction is open would leave rows behind, so the locks of all tables come first. The triggers of the
# append-only tables refuse each change whose kind this transaction has not named.
DELETE_ROWS = """
DO $$
DECLARE
    name text;
    is_filled boolean;
BEGIN
    LOCK TABLE {tables} IN EXCLUSIVE MODE;
    IF (SELECT max(pg_relation_size(t::regclass)) FROM unnest(ARRAY[{names}]) t) > {max_bytes} THEN
        PERFORM set_config('orchestrator.maintenance', 'truncate', true);
        TRUNCATE {tables};
        RETURN;
    END IF;
    PERFORM set_config('orchestrator.maintenance', 'delete', true);
    FOREACH name IN ARRAY ARRAY[{names}] LOOP
        -- A partitioned table has no pages of its own.
        CONTINUE WHEN pg_relation_size(name::regclass) = 0
            AND coalesce((SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree(name)), 0) = 0;
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', name) INTO is_filled;
        IF is_filled THEN
            EXECUTE format('DELETE FROM %s', name);
        END IF;
    END LOOP;
END $$
"""


def delete_rows() -> None:
    """Delete the rows of all tables but those of `KEPT`. Sequences keep their values."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(DELETE_ROWS.format(max_bytes=MAX_BYTES, **_tables()))


@functools.cache
def _tables() -> dict[str, str]:
    found = connection.introspection.django_table_names(only_existing=True, include_views=False)
    quoted = [connection.ops.quote_name(name) for name in sorted(set(found) - KEPT)]
    return {"tables": ", ".join(quoted), "names": ", ".join(f"'{name}'" for name in quoted)}


def retrying(flush: Callable[[], None]) -> None:
    """Call `flush` up to `ATTEMPTS` times while another transaction has the locks.

    A scheduler or server in the middle of a transaction has locks in another order: PostgreSQL then ends one of the two
    with a deadlock, or the flush waits longer than its lock timeout. The other transaction ends by itself.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            flush()
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) not in RETRIED or attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


def install() -> None:
    """Let the test cases that commit use this flush."""
    from django.test import TransactionTestCase  # noqa: PLC0415 - after the settings

    TransactionTestCase._fixture_teardown = lambda _case: retrying(delete_rows)  # type: ignore[method-assign]
