"""The SQL functions are compared with the database, and `migrate` creates them."""

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from leases import checks, sql_functions
from orchestrator.http.observability import health
from tests.api_client import Caller, problem_of
from tests.factories import WorkerFactory, scheduler_beat

BROKEN = """CREATE OR REPLACE FUNCTION bucket_tokens(p_per_hour integer, p_burst integer, p_spent_until timestamptz)
    RETURNS integer LANGUAGE sql VOLATILE AS $$ SELECT 1000000 $$"""
OVERLOAD = "CREATE FUNCTION bucket_tokens(p_per_hour bigint) RETURNS integer LANGUAGE sql AS $$ SELECT 1 $$"


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
    scheduler_beat(timezone.now())


def test_every_statement_of_the_files_is_the_definition_of_one_function():
    names = [function.name for function in sql_functions.expected_functions()]
    assert len(names) == len(set(names)) == sql_functions.read_sql().count("CREATE OR REPLACE FUNCTION") == 40


def test_the_migrated_database_has_the_functions_of_the_files(beat):
    assert sql_functions.function_mismatches() == []
    assert database_problems() == []
    assert ready().json() == {"status": "ready", "wrong": []}


@pytest.mark.parametrize(
    "change",
    [
        BROKEN,
        OVERLOAD,
        "ALTER FUNCTION bucket_tokens(integer, integer, timestamptz) SET work_mem = '1MB'",
        "ALTER FUNCTION bucket_tokens(integer, integer, timestamptz) RENAME TO renamed",
    ],
    ids=["body", "overload", "setting", "missing"],
)
def test_a_function_that_differs_is_reported_and_not_ready(beat, change):
    execute(change)
    assert database_problems() == ["leases.E004"]
    answer = ready()
    assert (answer.status_code, answer.json()["wrong"]) == (503, ["sql_functions"])


@pytest.mark.django_db(transaction=True)
def test_migrate_repairs_a_body():
    execute(BROKEN)
    call_command("migrate", verbosity=0)
    assert database_problems() == []


@pytest.mark.parametrize("option", ["--plan", "--check"])
@pytest.mark.django_db(transaction=True)
def test_a_question_to_migrate_changes_no_function(option):
    execute(BROKEN)
    call_command("migrate", option, verbosity=0)
    assert sql_functions.function_mismatches() == ["bucket_tokens"]
    sql_functions.install_functions()


def test_functions_of_a_newer_release_are_not_compared(beat):
    execute(BROKEN)
    MigrationRecorder(connection).record_applied("leases", "0099_later")
    assert database_problems() == []
    assert ready().status_code == 200


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
    execute("ALTER FUNCTION claim RENAME TO claim_of_later")
    health._are_migrations_applied.clear()
    try:
        yield worker
    finally:
        execute("ALTER FUNCTION claim_of_later RENAME TO claim")
        MigrationRecorder(connection).record_applied("leases", last.name)
        health._are_migrations_applied.clear()


def test_a_database_that_is_not_migrated_is_not_ready_and_requests_say_so(not_migrated):
    scheduler_beat(timezone.now())
    answer = ready()
    assert (answer.status_code, answer.json()["wrong"]) == (503, ["migrations"])
    claim = {"worker_id": not_migrated.worker_id, "job_types": ["runtime"]}
    document = problem_of(Caller(not_migrated.token).post("/v1/runtime/leases", claim))
    assert (document["status"], document["code"]) == (503, "database_unavailable")
    assert "manage.py migrate" in document["detail"]
    assert database_problems() == []  # `migrate` runs this check first
