"""Changes tables for migrations while the processes of two releases work with them.

Every function may be repeated: a migration that was interrupted starts again from its beginning.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from django.db import OperationalError, transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor

# Below deadlock_timeout, so that a lock which is not granted ends the attempt here and no operation elsewhere.
LOCK_TIMEOUT = "500ms"
PAUSE_SECONDS = 0.5  # in which the operations that waited behind the attempt proceed
MAX_ATTEMPTS = 120


def run_with_short_locks(schema_editor: BaseDatabaseSchemaEditor, statements: Sequence[str]) -> None:
    """Run statements in one transaction that waits for each lock only briefly; repeat it until it gets all locks.

    Args:
        schema_editor: Of a migration that is not atomic.
        statements: They must not read or rewrite a table, because they hold the strongest lock of their tables.

    Raises:
        OperationalError: A lock was not granted in `MAX_ATTEMPTS` attempts.
    """
    connection = schema_editor.connection
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                for statement in statements:
                    cursor.execute(statement)
        except OperationalError:
            if attempt == MAX_ATTEMPTS:
                raise
            time.sleep(PAUSE_SECONDS)
            interrupt_autovacuum(connection)
        else:
            return


def interrupt_autovacuum(connection: BaseDatabaseWrapper) -> None:
    """Interrupt each autovacuum of a table of this schema, so that the next attempt gets its locks.

    PostgreSQL interrupts an autovacuum for a session that has waited `deadlock_timeout` for its table. No attempt waits
    that long. So this function waits for a lock that vacuums hold and operations do not need. It waits
    `deadlock_timeout` and one second for each table: VACUUM of an operator holds the same lock, and continues.

    Args:
        connection: Its role owns the tables.
    """
    for table in _vacuumed_tables(connection):
        with contextlib.suppress(OperationalError), transaction.atomic(connection.alias), connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', (setting::integer + 1000)::text, true) FROM pg_settings"
                " WHERE name = 'deadlock_timeout'"
            )
            cursor.execute(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE")


def _vacuumed_tables(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the tables that another session vacuums, analyzes or changes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT c.oid::regclass::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
            " JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()"
            " WHERE l.mode = 'ShareUpdateExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()"
            " AND c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace"
        )
        return [str(row[0]) for row in cursor.fetchall()]


def replace_index(schema_editor: BaseDatabaseSchemaEditor, name: str, definition: str, *, unique: bool = False) -> None:
    """Create an index without blocking writes, then drop the index that had its name until now.

    Args:
        schema_editor: Of a migration that is not atomic.
        name: The name of the index.
        definition: What follows `CREATE INDEX name ON`.
        unique: Whether the index is unique.
    """
    kind = "UNIQUE INDEX" if unique else "INDEX"
    if not (_is_valid(schema_editor, f"{name}_new") and not _is_valid(schema_editor, name)):
        drop_index(schema_editor, f"{name}_new")  # an interrupted attempt leaves an invalid one
        _execute(schema_editor, f"CREATE {kind} CONCURRENTLY {name}_new ON {definition}")
    # If the last attempt was interrupted here, the new index is the only one that enforces the rule. It is kept.
    drop_index(schema_editor, name)
    run_with_short_locks(schema_editor, [f"ALTER INDEX {name}_new RENAME TO {name}"])


def drop_index(schema_editor: BaseDatabaseSchemaEditor, name: str) -> None:
    """Drop an index or the unique constraint of that name, if there is one, without blocking writes meanwhile."""
    found = _column(schema_editor, "SELECT conrelid::regclass::text FROM pg_constraint WHERE conname = %s", name)
    for table in found:
        run_with_short_locks(schema_editor, [f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}"])
    _execute(schema_editor, f"DROP INDEX CONCURRENTLY IF EXISTS {name}")


def repeat_until_done(schema_editor: BaseDatabaseSchemaEditor, statement: str) -> int:
    """Run an UPDATE of a batch of rows, each time in a transaction of its own, until it finds no row.

    Args:
        schema_editor: Of a migration that is not atomic.
        statement: It changes a limited number of rows so that it does not find them again.

    Returns:
        The number of rows.
    """
    total = 0
    while True:
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(statement)
            if cursor.rowcount == 0:
                return total
            total += cursor.rowcount


def require_values(schema_editor: BaseDatabaseSchemaEditor, table: str, column: str) -> None:
    """Set a column to NOT NULL. The table is read while others write it.

    Args:
        schema_editor: Of a migration that is not atomic.
        table: The table.
        column: The column, which has a default and no null.
    """
    name = f"{table}_{column}_required"
    run_with_short_locks(
        schema_editor,
        [
            f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}",
            f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({column} IS NOT NULL) NOT VALID",
        ],
    )
    _execute(schema_editor, f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
    # PostgreSQL finds the valid constraint and does not read the table again.
    run_with_short_locks(
        schema_editor,
        [f"ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL", f"ALTER TABLE {table} DROP CONSTRAINT {name}"],
    )


def pattern_indexes(schema_editor: BaseDatabaseSchemaEditor, table: str) -> list[str]:
    """Return the indexes that Django creates for LIKE beside a unique index of the same column."""
    return _column(
        schema_editor,
        "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() AND tablename = %s"
        " AND indexdef LIKE '%%varchar_pattern_ops%%'",
        table,
    )


def check_constraints(schema_editor: BaseDatabaseSchemaEditor, table: str) -> list[str]:
    """Return the names of all CHECK constraints of a table."""
    return _column(
        schema_editor, "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'", table
    )


def foreign_keys(schema_editor: BaseDatabaseSchemaEditor, table: str) -> list[str]:
    """Return the names of all foreign keys from a table."""
    return _column(
        schema_editor, "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'f'", table
    )


def _is_valid(schema_editor: BaseDatabaseSchemaEditor, name: str) -> bool:
    """Return whether an index of that name exists and is complete."""
    query = "SELECT indexrelid::regclass::text FROM pg_index WHERE indexrelid = to_regclass(%s) AND indisvalid"
    return bool(_column(schema_editor, query, name))


def _column(schema_editor: BaseDatabaseSchemaEditor, query: str, value: str) -> list[str]:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(query, [value])
        return [str(row[0]) for row in cursor.fetchall()]


def _execute(schema_editor: BaseDatabaseSchemaEditor, statement: str) -> None:
    if schema_editor.connection.in_atomic_block:  # PostgreSQL refuses CONCURRENTLY in a transaction, as a test has it
        statement = statement.replace(" CONCURRENTLY", "")
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = 0")  # CONCURRENTLY waits for other transactions and blocks none
        try:
            cursor.execute(statement)
        finally:
            cursor.execute("RESET lock_timeout")
