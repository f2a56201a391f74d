"""`manage.py migrate`: Django's command, which gives way to processes and refuses a schema that it does not know."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import OperationalError, connections, transaction
from django.db.migrations import Migration

from leases.advisory_locks import SCHEMA
from leases.sql_functions import install_functions
from runtime_jobs.applied_migrations import are_migrations_pending, unknown_migrations
from runtime_jobs.db_errors import sqlstate_of

# Below deadlock_timeout, so that a lock which is not granted ends the attempt here and no operation elsewhere.
LOCK_TIMEOUT = "500ms"
PAUSE_SECONDS = 0.5  # in which the operations that waited behind the attempt proceed
MAX_ATTEMPTS = 120
GIVEN_WAY = frozenset({"55P03", "40P01"})  # lock_not_available, deadlock_detected


class Command(migrate.Command):
    """Applies migrations while processes of two releases serve.

    An atomic migration may need the locks of several tables, in another order than an operation. So it waits for each
    lock for less than `deadlock_timeout`, gives back all its locks, and starts again. PostgreSQL would end the
    migration or the operation. Before it starts again, it interrupts an autovacuum of a table, which would hold the
    table for longer than all attempts. A migration that is not atomic sets its own waits: CREATE INDEX
    CONCURRENTLY has to wait for all older transactions.

    Of two commands at once the later one waits, and finds nothing left to apply. When all migrations are applied, the
    command creates the SQL functions of this release.
    """

    help = "Applies the migrations of this release, while the processes of the former one may serve."

    def get_check_kwargs(self, options: dict[str, Any]) -> Any:
        """Leave out the checks of the database: one compares it with this release, to which it has yet to come."""
        return super().get_check_kwargs(options) | {"databases": None}

    def handle(self, *args: Any, **options: Any) -> None:
        """Repeat the command until each migration has got its locks, while no other process migrates.

        Raises:
            CommandError: The database has migrations that this release does not have. Nothing was changed.
            OperationalError: A lock was not granted in `MAX_ATTEMPTS` attempts.
        """
        self.connection = connections[options["database"]]
        with self._alone(verbosity=options["verbosity"]):
            self._refuse_unknown_schema()
            self._handle_patiently(*args, **options)
            if not (options["plan"] or options["check_unapplied"] or are_migrations_pending(self.connection)):
                install_functions()

    def _refuse_unknown_schema(self) -> None:
        if unknown := unknown_migrations(self.connection):
            others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise CommandError(
                "the database was made by a newer release or by a commit before 0.1.0"
                f" (this release does not have {unknown[0]}{others}): run that release,"
                " or name an empty database with DATABASE_URL= or STATE_DIR="
            )

    def _handle_patiently(self, *args: Any, **options: Any) -> None:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                super().handle(*args, **options)
                break
            except OperationalError as error:
                if attempt == MAX_ATTEMPTS or sqlstate_of(error) not in GIVEN_WAY:
                    raise
            if options["verbosity"]:
                self.stdout.write(" a table is in use: starting again")
            time.sleep(PAUSE_SECONDS)
            self._interrupt_autovacuum()
        self._run("RESET lock_timeout")

    def _interrupt_autovacuum(self) -> None:
        """Interrupt each autovacuum of a table of this schema, so that the next attempt gets its locks.

        PostgreSQL interrupts an autovacuum for a session that has waited `deadlock_timeout` for its table. No attempt
        waits that long. So this waits for a lock that vacuums hold and operations do not need. It waits
        `deadlock_timeout` and one second for each table: VACUUM of an operator holds the same lock, and continues.
        """
        for table in self._vacuumed_tables():
            with suppress(OperationalError), transaction.atomic(self.connection.alias):
                self._run(
                    "SELECT set_config('lock_timeout', (setting::integer + 1000)::text, true) FROM pg_settings"
                    " WHERE name = 'deadlock_timeout'"
                )
                self._run(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE")

    def _vacuumed_tables(self) -> list[str]:
        """Return the tables that another session vacuums, analyzes or changes."""
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT DISTINCT c.oid::regclass::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                " JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()"
                " WHERE l.mode = 'ShareUpdateExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()"
                " AND c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace"
            )
            return [str(row[0]) for row in cursor.fetchall()]

    @contextmanager
    def _alone(self, *, verbosity: int) -> Iterator[None]:
        """Hold the lock of the schema in a session of its own, also behind a pooler that shares sessions."""
        session = self.connection.copy()
        session.set_autocommit(False)
        is_announced = False
        try:
            with session.cursor() as cursor:
                while not _has_lock(cursor):
                    session.rollback()
                    if verbosity and not is_announced:
                        is_announced = True
                        self.stdout.write("Another process migrates this database: waiting for it")
                    time.sleep(PAUSE_SECONDS)
                # It also ends the snapshot of the statement before, for which CREATE INDEX CONCURRENTLY would wait.
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield
        finally:
            session.rollback()
            session.close()

    def migration_progress_callback(self, action: str, migration: Migration | None = None, fake: bool = False) -> None:
        super().migration_progress_callback(action, migration, fake)
        if action in {"apply_start", "unapply_start"} and migration is not None:
            self._run(f"SET lock_timeout = '{LOCK_TIMEOUT}'" if migration.atomic else "RESET lock_timeout")

    def _run(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)


def _has_lock(cursor: Any) -> bool:
    cursor.execute("SELECT pg_try_advisory_xact_lock(%s, 0)", [SCHEMA])
    return bool(cursor.fetchone()[0])
