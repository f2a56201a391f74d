"""The migration to jobs that settle: of jobs in every state and open leases nothing moves."""

import importlib

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from leases import sql_functions
from leases.models import Lease
from orchestrator.audit.runner import run_audit
from orchestrator.core import bulk_write
from orchestrator.services import cancellation, heartbeat, job_end
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import SETTLING_STATES, FailureReason, JobState
from tests.factories import ALICE, ProjectFactory, WorkerFactory, claimed, submitted
from tests.orchestrator.services.test_heartbeat import speak

# Two migrations compute the state of all models: half a minute, and several on a machine with ten other suites.
pytestmark = [pytest.mark.django_db, pytest.mark.timeout(900)]

FORMER_GUARD = importlib.import_module("runtime_jobs.migrations.0005_lean_jobs_and_events").GUARD
NEW_COLUMNS = (
    "late_result_seconds",
    "needs_processing",
    "timeout_grace_seconds",
    "late_result_at",
    "is_metered",
    "last_billed_minute",
)
LATER_COLUMNS = ("replay_of_job_ulid", "has_artifacts")  # of later migrations, which are undone with it


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def jobs_in_every_state() -> None:
    """One job in each state that the former schema knows, and a cancel that was requested."""
    project, worker = ProjectFactory(), WorkerFactory()
    ends = {
        JobState.SUCCEEDED: lambda claim: job_end.complete(**speak(claim, ingest_run_id="run_1")),
        JobState.FAILED: lambda claim: job_end.fail(**speak(claim, reason=FailureReason.WORKER_ERROR)),
        JobState.CANCELED: lambda claim: cancellation.stop_by_worker(**speak(claim)),
    }
    for end in ends.values():
        submitted(project)
        end(claimed(worker))
    for phase in (JobState.STARTING, JobState.CHECKING_OUT, JobState.EXECUTING, JobState.UPLOADING):
        running = submitted(project)
        heartbeat.report(**speak(claimed(worker), phase=phase))
    cancellation.cancel(job_ulid=running.job_ulid, actor=ALICE, deadline_seconds=900)
    submitted(project)
    claimed(worker, acknowledge=True)
    submitted(project, depends_on=(running,))
    submitted(project)
    assert set(Job.objects.values_list("state", flat=True)) == set(JobState) - set(SETTLING_STATES)
    assert Lease.objects.open().count() == 5


def without_vacuum() -> None:
    """Keep vacuums away from all tables until the end of the test: migrations wait for a lock for half a second only."""
    tables = execute("SELECT format('%I', tablename) FROM pg_tables WHERE schemaname = current_schema()")
    execute(f"LOCK TABLE {', '.join(name for (name,) in tables)} IN SHARE UPDATE EXCLUSIVE MODE")


def former_schema() -> None:
    """Undo what reversing leaves: the former release works on the new schema, too."""
    execute("SET CONSTRAINTS ALL IMMEDIATE")
    without_vacuum()
    # One plan: most of the time is for the state of the models, which each call of `migrate` would compute again.
    targets = [("leases", "0007_lean_leases"), ("runtime_jobs", "0006_jobs_by_creation")]
    MigrationExecutor(connection).migrate(targets)
    execute("DROP INDEX jobs_settling")
    execute(f"ALTER TABLE runtime_jobs {', '.join(f'DROP COLUMN {column}' for column in NEW_COLUMNS)}")
    execute(FORMER_GUARD)


def rows() -> list[list[tuple]]:
    columns = execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'runtime_jobs'"
        " AND table_schema = current_schema() ORDER BY 1"
    )
    kept = ", ".join(name for (name,) in columns if name not in (*NEW_COLUMNS, *LATER_COLUMNS))
    return [
        execute(f"SELECT {kept} FROM runtime_jobs ORDER BY id"),
        *(execute(f"SELECT * FROM {model._meta.db_table} ORDER BY id") for model in (Lease, JobEvent)),
    ]


def test_nothing_moves(settings, monkeypatch):
    settings.TIMEOUT_GRACE_SECONDS = 75
    jobs_in_every_state()
    assert run_audit(chains=True) == []
    former_schema()
    before = rows()
    call_command("migrate", verbosity=0)
    assert rows() == before
    assert run_audit(chains=True) == []
    assert sql_functions.function_mismatches() == []
    policies = set(Job.objects.values_list(*NEW_COLUMNS))
    assert policies == {(0, False, 75, None, False, None)}, "the grace that was in force stays in force"

    # A process of the former release stores a job without the new columns.
    monkeypatch.setattr(bulk_write, "_WRITE_ROWS", bulk_write._WRITE_ROWS.replace("_v3", "_v2"))
    job = submitted()
    assert Job.objects.filter(pk=job.pk).values_list(*NEW_COLUMNS).get() == (0, False, 75, None, False, None)
