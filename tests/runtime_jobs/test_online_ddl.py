"""Migrations that change indexes keep the rules that unique indexes enforce, also after an interruption."""

from types import SimpleNamespace

import pytest
from django.db import connection

from runtime_jobs import online_ddl

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "one_open_lease_per_job"
DEFINITION = "runtime_worker_leases (job_ulid) WHERE completed_at IS NULL"
EDITOR = SimpleNamespace(connection=connection)


class Interrupted(Exception):
    """Replaces the end of the process that migrates."""


def rules():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
            " WHERE indrelid = 'runtime_worker_leases'::regclass AND relname LIKE 'one_open%%' AND indisvalid"
            " AND indisunique ORDER BY 1"
        )
        return [name for (name,) in cursor.fetchall()]


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
