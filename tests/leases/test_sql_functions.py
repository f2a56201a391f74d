"""The SQL functions are versioned, frozen and compared with the database."""

import shutil

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from leases import checks, sql_functions
from orchestrator.http.observability import health
from orchestrator.models import ClockBeat
from tests.api_client import Caller, problem_of
from tests.factories import WorkerFactory

BROKEN = """CREATE OR REPLACE FUNCTION bucket_tokens_v1(p_per_hour integer, p_burst integer, p_spent_until timestamptz)
    RETURNS integer LANGUAGE sql VOLATILE AS $$ SELECT 1000000 $$"""
OVERLOAD = "CREATE FUNCTION bucket_tokens_v1(p_per_hour bigint) RETURNS integer LANGUAGE sql AS $$ SELECT 1 $$"


def execute(sql, values=None):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(autouse=True)
def fresh_cache():
    sql_functions.clear_cache()
    yield
    sql_functions.clear_cache()


def database_problems():
    return [problem.id for problem in checks.installed_sql_functions(databases=["default"])]


def ready():
    return Caller().get("/readyz")


@pytest.fixture
def beat(db):
    ClockBeat.objects.create(leader="test", beat_at=timezone.now())


def test_released_files_are_frozen():
    assert checks.frozen_sql_files() == []
    files = {str(path.relative_to(sql_functions.DIRECTORY)) for path in sql_functions.DIRECTORY.rglob("*.sql")}
    assert files == set(sql_functions.CHECKSUMS)


def test_an_edited_file_is_reported(tmp_path, monkeypatch):
    copy = tmp_path / "sql"
    shutil.copytree(sql_functions.DIRECTORY, copy)
    monkeypatch.setattr(sql_functions, "DIRECTORY", copy)
    file = copy / "v1" / "claim.sql"
    file.write_text(file.read_text() + "-- one more line\n")
    assert [problem.id for problem in checks.frozen_sql_files()] == ["leases.E003"]


def test_every_function_has_a_version_and_every_file_names_some(db):
    names = [function.name for function in sql_functions.expected_functions()]
    assert len(names) == len(set(names)) == 39
    assert all(name.endswith(("_v1", "_v2", "_v3")) for name in names)
    text = "".join(sql_functions.read_sql(file) for file in sql_functions.CHECKSUMS)
    assert text.count("CREATE OR REPLACE FUNCTION") == len(names)


def test_the_migrated_database_has_the_functions_of_the_files(beat):
    assert sql_functions.function_mismatches() == []
    assert database_problems() == []
    assert ready().json() == {"status": "ready", "wrong": []}


@pytest.mark.parametrize(
    "change",
    [
        BROKEN,
        OVERLOAD,
        "ALTER FUNCTION bucket_tokens_v1(integer, integer, timestamptz) SET work_mem = '1MB'",
        "ALTER FUNCTION bucket_tokens_v1(integer, integer, timestamptz) RENAME TO renamed",
    ],
    ids=["body", "overload", "setting", "missing"],
)
def test_a_function_that_differs_is_reported_and_not_ready(beat, change):
    execute(change)
    assert database_problems() == ["leases.E004"]
    answer = ready()
    assert (answer.status_code, answer.json()["wrong"]) == (503, ["sql_functions"])


def test_the_hint_of_the_check_repairs_a_body(beat):
    execute(BROKEN)
    for file in sql_functions.CHECKSUMS:
        execute(sql_functions.read_sql(file))
    assert database_problems() == []


def test_a_positive_answer_is_cached(beat, django_assert_num_queries):
    assert sql_functions.are_functions_current()
    with django_assert_num_queries(0):
        assert sql_functions.are_functions_current()


def test_other_databases_are_not_asked(django_assert_num_queries, db):
    with django_assert_num_queries(0):
        assert checks.installed_sql_functions(databases=None) == []


@pytest.fixture
def not_migrated(transactional_db):
    """A database as a new process meets it that was started before `migrate`: without a migration and a function."""
    worker = WorkerFactory()
    last = MigrationRecorder.Migration.objects.filter(app="leases").latest("name")
    last.delete()
    execute("ALTER FUNCTION bucket_tokens_v1(integer, integer, timestamptz) RENAME TO renamed")
    execute("ALTER FUNCTION claim_v2 RENAME TO renamed")
    health._are_migrations_applied.clear()
    try:
        yield worker
    finally:
        execute("ALTER FUNCTION renamed(integer, integer, timestamptz) RENAME TO bucket_tokens_v1")
        execute("ALTER FUNCTION renamed RENAME TO claim_v2")
        MigrationRecorder(connection).record_applied("leases", last.name)
        health._are_migrations_applied.clear()


def test_a_database_that_is_not_migrated_is_not_ready_and_requests_say_so(not_migrated):
    ClockBeat.objects.create(leader="test", beat_at=timezone.now())
    answer = ready()
    assert (answer.status_code, answer.json()["wrong"]) == (503, ["migrations"])
    claim = {"worker_id": not_migrated.worker_id, "job_types": ["runtime"]}
    document = problem_of(Caller(not_migrated.token).post("/v1/runtime/leases", claim))
    assert (document["status"], document["code"]) == (503, "database_unavailable")
    assert "manage.py migrate" in document["detail"]
    assert database_problems() == []  # `migrate` runs this check first
