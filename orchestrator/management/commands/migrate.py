"""`manage.py migrate`: Django's command, which gives way to the processes that work with the tables."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import migrate
from django.db import OperationalError, connections
from django.db.migrations import Migration

from leases.advisory_locks import SCHEMA
from runtime_jobs.db_errors import sqlstate_of
from runtime_jobs.online_ddl import LOCK_TIMEOUT, MAX_ATTEMPTS, PAUSE_SECONDS, interrupt_autovacuum

GIVEN_WAY = frozenset({"55P03", "40P01"})  # lock_not_available, deadlock_detected


class Command(migrate.Command):
    """Applies migrations while processes of two releases serve.

    An atomic migration may need the locks of several tables, in another order than an operation. So it waits for each
    lock for less than `deadlock_timeout`, gives back all its locks, and starts again. PostgreSQL would end the
    migration or the operation. Before it starts again, it interrupts an autovacuum of a table, which would hold the
    table for longer than all attempts. A migration that is not atomic waits in `runtime_jobs.online_ddl` instead.

    Of two commands at once the later one waits, and finds nothing left to apply.
    """

    help = "Applies the migrations of this release, while the processes of the former one may serve."

    def handle(self, *args: Any, **options: Any) -> None:
        """Repeat the command until each migration has got its locks, while no other process migrates.

        Raises:
            OperationalError: A lock was not granted in `MAX_ATTEMPTS` attempts.
        """
        self.connection = connections[options["database"]]
        with self._alone(verbosity=options["verbosity"]):
            self._handle_patiently(*args, **options)

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
            interrupt_autovacuum(self.connection)
        self._run("RESET lock_timeout")

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
