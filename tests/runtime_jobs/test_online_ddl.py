"""Migrations change tables that are in use.

Those that change indexes keep the rules that unique indexes enforce, also after an interruption.
"""

from types import SimpleNamespace

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.commands import migrate as django_migrate
from django.db import OperationalError, connection

from orchestrator.management.commands import migrate
from runtime_jobs import online_ddl
from tests.live_server import eventually

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "one_open_lease_per_job"
DEFINITION = "runtime_worker_leases (job_ulid) WHERE completed_at IS NULL"
EDITOR = SimpleNamespace(connection=connection)


class Interrupted(Exception):
    """Replaces the end of the process that migrates."""


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def rules():
    found = execute(
        "SELECT relname FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
        " WHERE indrelid = 'runtime_worker_leases'::regclass AND relname LIKE 'one_open%' AND indisvalid"
        " AND indisunique ORDER BY 1"
    )
    return [name for (name,) in found]


def replace():
    online_ddl.replace_index(EDITOR, NAME, DEFINITION, unique=True)


@pytest.fixture
def statements(monkeypatch):
    """Collect what is executed. The rule exists before and after each statement."""
    seen, execute, run = [], online_ddl._execute, online_ddl.run_with_short_locks

    def watched(perform, statement):
        assert rules()
        seen.append(statement)
        if any(word in statement for word in interruptions):
            raise Interrupted(statement)
        perform()
        assert rules()

    interruptions = []
    monkeypatch.setattr(online_ddl, "_execute", lambda editor, text: watched(lambda: execute(editor, text), text))
    monkeypatch.setattr(
        online_ddl,
        "run_with_short_locks",
        lambda editor, texts: watched(lambda: run(editor, texts), "; ".join(texts)),
    )
    return SimpleNamespace(seen=seen, interruptions=interruptions)


def test_an_index_is_replaced_without_a_moment_without_its_rule(statements):
    assert rules() == [NAME]
    replace()
    assert rules() == [NAME]
    assert [text.partition(" ON ")[0] for text in statements.seen] == [
        f"DROP INDEX CONCURRENTLY IF EXISTS {NAME}_new",
        f"CREATE UNIQUE INDEX CONCURRENTLY {NAME}_new",
        f"DROP INDEX CONCURRENTLY IF EXISTS {NAME}",
        f"ALTER INDEX {NAME}_new RENAME TO {NAME}",
    ]


@pytest.mark.parametrize("word", ["_new ON ", f"EXISTS {NAME}_new", "RENAME"])
def test_a_migration_that_was_interrupted_keeps_the_rule_and_can_be_repeated(statements, word):
    statements.interruptions.append(word)
    with pytest.raises(Interrupted):
        replace()
    assert rules()
    statements.interruptions.clear()
    replace()
    assert rules() == [NAME]


def test_an_interrupted_rename_is_completed_without_building_the_index_again(statements):
    statements.interruptions.append("RENAME")
    with pytest.raises(Interrupted):
        replace()
    assert rules() == [f"{NAME}_new"]
    statements.interruptions.clear()
    statements.seen.clear()
    replace()
    assert rules() == [NAME]
    assert not [text for text in statements.seen if "CREATE" in text]


def test_an_index_that_an_interrupted_build_left_is_not_trusted(statements):
    """While the old one enforces the rule, the other may be incomplete or of another definition."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE INDEX {NAME}_new ON runtime_worker_leases (fence)")
    replace()
    assert rules() == [NAME]
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", [NAME])
        assert "(job_ulid) WHERE (completed_at IS NULL)" in cursor.fetchone()[0]


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


def by_command(monkeypatch):
    """Change the table as a migration of Django's operations does.

    Django's command is replaced by one migration: all of this release are applied. Three attempts, so that a test that
    fails takes seconds.
    """

    def migration(command, *_, **options):
        command.verbosity = options["verbosity"]
        command.migration_progress_callback("apply_start", SimpleNamespace(atomic=True))
        execute(CHANGE)

    monkeypatch.setattr(migrate, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(django_migrate.Command, "handle", migration)
    call_command("migrate", verbosity=0)


def by_function(monkeypatch):
    """Change the table as a migration does that is not atomic."""
    monkeypatch.setattr(online_ddl, "MAX_ATTEMPTS", 3)
    online_ddl.run_with_short_locks(EDITOR, [CHANGE])


@pytest.mark.parametrize("change", [by_command, by_function])
def test_a_migration_interrupts_an_autovacuum(busy_table, change, monkeypatch):
    execute(f"ALTER TABLE busy SET ({SLOW_VACUUM})")
    execute("INSERT INTO busy SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n")
    execute("DELETE FROM busy")
    eventually(is_vacuumed, 120)
    change(monkeypatch)
    assert columns() == ["id"]


def test_a_migration_leaves_the_vacuum_of_an_operator_alone(busy_table, database_url, monkeypatch):
    with psycopg.connect(database_url) as operator:
        operator.execute("LOCK TABLE busy IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            by_function(monkeypatch)
        assert operator.execute("SELECT count(*) FROM busy").fetchone() == (0,)
    assert columns() == ["id", "filler"]
