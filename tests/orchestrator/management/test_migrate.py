"""`manage.py migrate` beside processes that work: the migration gives way, no operation is ended."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.commands import migrate
from django.db import OperationalError, connection, transaction

from tests.live_server import eventually

pytestmark = pytest.mark.django_db(transaction=True)

ATOMIC, NOT_ATOMIC = SimpleNamespace(atomic=True), SimpleNamespace(atomic=False)


def execute(statement: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def lock_timeout() -> object:
    return execute("SHOW lock_timeout")[0][0]


def migration_waits(session: psycopg.Connection) -> bool:
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'runtime_jobs'::regclass"
    return session.execute(waits).fetchone() != (0,)


def test_a_migration_that_meets_an_operation_gives_way_and_starts_again(monkeypatch, database_url):
    job_locked, plan_locked, attempts = Event(), Event(), []

    def migration(command, *_, **options):
        command.verbosity = options["verbosity"]
        command.migration_progress_callback("apply_start", ATOMIC)
        job_locked.wait(60)
        attempts.append(lock_timeout())
        with transaction.atomic():
            execute("LOCK TABLE runtime_jobs_plan IN ACCESS EXCLUSIVE MODE")
            plan_locked.set()
            execute("LOCK TABLE runtime_jobs IN ACCESS EXCLUSIVE MODE")

    def operation():
        with psycopg.connect(database_url) as session:
            session.execute("SET lock_timeout = 0")
            session.execute("LOCK TABLE runtime_jobs IN ROW EXCLUSIVE MODE")
            job_locked.set()
            plan_locked.wait(60)
            # The other one has begun to wait first: so its 500 ms end before PostgreSQL looks for a deadlock here.
            eventually(lambda: migration_waits(session), 60)
            return session.execute("SELECT count(*) >= 0 FROM runtime_jobs_plan").fetchone()

    monkeypatch.setattr(migrate.Command, "handle", migration)
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(operation)
        call_command("migrate", verbosity=0)
        assert working.result(60) == (True,)
    assert attempts[0] == "500ms"
    assert len(attempts) > 1


def test_a_migration_that_is_not_atomic_waits_as_its_own_statements_say(monkeypatch):
    before, seen = lock_timeout(), []

    def migration(command, *_, **options):
        command.verbosity = options["verbosity"]
        for kind in (ATOMIC, NOT_ATOMIC, ATOMIC):
            command.migration_progress_callback("apply_start", kind)
            seen.append(lock_timeout())

    monkeypatch.setattr(migrate.Command, "handle", migration)
    call_command("migrate", verbosity=0)
    assert seen == ["500ms", before, "500ms"]
    assert lock_timeout() == before


def test_another_error_is_not_repeated(monkeypatch):
    attempts = []

    def migration(*_, **__):
        attempts.append(1)
        execute("SET LOCAL statement_timeout = '1ms'; SELECT pg_sleep(10)")

    monkeypatch.setattr(migrate.Command, "handle", migration)
    with pytest.raises(OperationalError):
        call_command("migrate", verbosity=0)
    assert len(attempts) == 1
