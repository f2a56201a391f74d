"""`manage.py migrate` beside processes that work: the migration gives way, no operation is ended."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.commands import migrate
from django.db import OperationalError, connection, transaction

from orchestrator.management.commands import migrate as command_module
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


SLOW_VACUUM = ", ".join(
    f"autovacuum_{name}"
    for name in (
        *("vacuum_threshold = 0", "vacuum_scale_factor = 0", "analyze_threshold = 2000000000"),
        *("vacuum_cost_limit = 1", "vacuum_cost_delay = 100"),  # 20 ms for each page or more: minutes for the table
    )
)


CHANGE = "ALTER TABLE busy DROP COLUMN filler"


@pytest.fixture
def busy_table():
    execute("CREATE TABLE busy (id integer, filler text)")
    yield "busy"
    execute("DROP TABLE busy")


def columns():
    found = "SELECT attname FROM pg_attribute WHERE attrelid = 'busy'::regclass AND attnum > 0 AND NOT attisdropped"
    return [name for (name,) in execute(found)]


def is_vacuumed():
    return execute("SELECT 1 FROM pg_locks WHERE relation = 'busy'::regclass AND mode = 'ShareUpdateExclusiveLock'")


def change_table(monkeypatch):
    """Change the table as a migration of Django's operations does.

    Django's command is replaced by one migration: all of this release are applied. Three attempts, so that a test that
    fails takes seconds.
    """

    def migration(command, *_, **options):
        command.verbosity = options["verbosity"]
        command.migration_progress_callback("apply_start", ATOMIC)
        execute(CHANGE)

    monkeypatch.setattr(command_module, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(migrate.Command, "handle", migration)
    call_command("migrate", verbosity=0)


def test_a_migration_interrupts_an_autovacuum(busy_table, monkeypatch):
    execute(f"ALTER TABLE busy SET ({SLOW_VACUUM})")
    execute("INSERT INTO busy SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n")
    execute("DELETE FROM busy")
    eventually(is_vacuumed, 120)
    change_table(monkeypatch)
    assert columns() == ["id"]


def test_a_migration_leaves_the_vacuum_of_an_operator_alone(busy_table, database_url, monkeypatch):
    with psycopg.connect(database_url) as operator:
        operator.execute("LOCK TABLE busy IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            change_table(monkeypatch)
        assert operator.execute("SELECT count(*) FROM busy").fetchone() == (0,)
    assert columns() == ["id", "filler"]
