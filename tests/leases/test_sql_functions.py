"""The SQL functions are versioned, frozen, compared with the database, and beside those of former commits."""

import shutil
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from leases import checks, sql_functions
from leases.models import Lane, Lease, LimitSlot
from leases.states import OPEN
from orchestrator.audit.runner import run_audit
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.http.observability import health
from orchestrator.services import claiming, heartbeat
from runtime_jobs.models import Job
from tests.api_client import Caller, problem_of
from tests.factories import OrganizationFactory, PlanFactory, ProjectFactory, WorkerFactory, claimed, offer, submitted

FORMER = Path(__file__).parent / "former_functions"
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
    """The schema before the versioned functions, as a new process meets it that was started before `migrate`."""
    worker = WorkerFactory()
    call_command("migrate", "leases", "0003", verbosity=0)
    health._are_migrations_applied.clear()
    try:
        yield worker
    finally:
        call_command("migrate", verbosity=0)  # also migrations of other apps that depend on these
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


@pytest.mark.parametrize("commit", ["8637103", "35c5633"])
def test_the_migration_leaves_former_functions_as_they_are(transactional_db, commit):
    former = "SELECT proname, md5(prosrc) FROM pg_proc WHERE proname ~ '^(lanes?_|submit_quota)' ORDER BY oid"
    with transaction.atomic():
        execute((FORMER / f"{commit}.sql").read_text())
        before = execute(former)
        call_command("migrate", "leases", "0003", verbosity=0)
        call_command("migrate", "leases", verbosity=0)
        assert len(before) >= 17
        assert execute(former) == before
        transaction.set_rollback(True)


def claim_as_before(worker, jobs=1):
    """The statements of a claim as both former commits send them. Returns the ids of the claimed jobs."""
    rows = execute(
        "SELECT * FROM lanes_take(%s, ARRAY(SELECT id::integer FROM lane_profiles), %s, %s)",
        [worker.pool.slug, worker.worker_id, jobs],
    )
    lanes = [key for kind, key, _ in rows if kind == "lane"]
    found = [sum(1 for kind, _, lane in rows if kind == "job" and lane == key) for key in lanes]
    full_lanes = [(key, limit) for kind, key, limit in rows if kind == "lane_full"]
    full_queues = [(key, limit) for kind, key, limit in rows if kind == "queue_full"]
    columns = [
        lanes,
        found,
        *([[pair[side] for pair in full] for full in (full_lanes, full_queues) for side in (0, 1)]),
    ]
    execute(f"SELECT lanes_settle({', '.join(['%s::integer[]'] * 6)})", columns)
    return [key for kind, key, _ in rows if kind == "job"]


def requeue_as_before(job):
    Job.objects.filter(pk=job.pk).update(state="queued")
    execute(
        "SELECT lanes_end(%s::bigint[], %s::bigint[], %s::integer[], %s::timestamptz[])",
        [[job.pk], [job.pk], [job.lane_id], [job.created_at]],
    )


@pytest.mark.django_db
@pytest.mark.parametrize("commit", ["8637103", "35c5633"])
def test_former_calls_and_present_calls_work_on_the_same_rows(commit):
    execute((FORMER / f"{commit}.sql").read_text())
    project = ProjectFactory(organization=OrganizationFactory(plan=PlanFactory(max_active=3, priority=100)))
    worker = WorkerFactory(capacity=50)
    jobs = [submitted(project) for _ in range(5)]

    assert claim_as_before(worker) == [jobs[0].pk]
    assert claimed(worker).job.pk == jobs[1].pk
    assert claim_as_before(worker, 5) == [jobs[2].pk]  # the limit of both is three
    assert claiming.claim(worker=worker, offer=offer(worker)) is None
    assert LimitSlot.objects.filter(job_id__isnull=False).count() == 3

    requeue_as_before(jobs[0])  # a former process ends one: a present claim gets its place
    assert claimed(worker).job.pk == jobs[0].pk
    lease = Lease.objects.get(job_id=jobs[1].job_ulid, state__in=OPEN)
    heartbeat.release(lease_ulid=lease.lease_ulid, worker=worker)  # and the other way round
    assert claim_as_before(worker) == [jobs[1].pk]

    execute("SELECT lanes_age(10)")
    execute("SELECT lanes_due(10)")
    for lane in Lane.objects.all():
        execute("SELECT lanes_advance(%s)", [lane.pk])
    assert LimitSlot.objects.filter(job_id__isnull=False).count() == 3
    assert [finding for finding in run_audit() if finding.code.startswith("L")] == []
