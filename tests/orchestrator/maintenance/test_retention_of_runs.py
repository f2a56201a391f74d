"""Workflow runs have a period of their own, and are deleted with everything that belongs to them (contract 4.8)."""

from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection

from orchestrator.core.counters import write_counts
from orchestrator.core.metrics_models import Count
from orchestrator.job_tokens.models import TokenChain
from orchestrator.maintenance import pruners
from orchestrator.maintenance.pruners import LogPruner, StoredLogPruner
from orchestrator.maintenance.pruning import (
    PruningTask,
    count_everything,
    count_old_rows,
    delete_everything,
)
from orchestrator.services import job_end
from runtime_jobs.db_time import database_now
from runtime_jobs.models import (
    Batch,
    DiscardedLogObject,
    Job,
    JobEvent,
    JobStep,
    LogChunk,
    MaskSnapshot,
    RejectedWorkflow,
    StepAnnotation,
    StepLog,
    StoredArtifact,
    WaitingLogChunk,
    WorkflowRun,
    WorkflowTrigger,
)
from runtime_jobs.states import FailureReason
from tests.factories import claimed, submitted
from tests.orchestrator.protocols.git_http.world import RunningJob, running_job
from tests.orchestrator.repositories.world import added

pytestmark = pytest.mark.django_db
LINES = b"line\n"


@pytest.fixture
def repository(settings, tmp_path):
    settings.STORAGES = settings.STORAGES | {
        "artifacts": settings.STORAGES["artifacts"] | {"OPTIONS": {"location": str(tmp_path)}}
    }
    return added("https://github.com/acme/web")


def run_ended(repository, days: float, **columns: object) -> WorkflowRun:
    """A run whose only job ended so many days ago, with rows in every table that a job has."""
    ended_at = database_now() - timedelta(days=days)
    running = running_job(repository, now=ended_at - timedelta(seconds=5))
    _fail(running.lease, running.worker, ended_at)
    _add_rows(running, ended_at)
    WorkflowRun.objects.filter(pk=running.run.pk).update(**columns)
    running.run.refresh_from_db()
    return running.run


def _fail(lease, worker, now) -> None:
    job_end.fail(lease_ulid=lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR, now=now)


def _add_rows(running: RunningJob, ended_at) -> None:
    job, key = running.job, running.job.job_ulid
    JobStep.objects.filter(job=job).delete()
    JobStep.objects.create(
        job=job,
        index=0,
        run="make",
        status="completed",
        conclusion="success",
        started_at=ended_at,
        completed_at=ended_at,
    )
    log = StepLog.objects.create(
        job=job, step=0, object_key=f"actions/{key}.log", object_bytes=5, attempts=1, stored_bytes=5, closed_at=ended_at
    )
    LogChunk.objects.create(job=job, step=0, seq=9, chunk=LINES, sha256="0" * 64, created_at=ended_at)
    WaitingLogChunk.objects.create(step_log=log, seq=11, size=1, sealed=b"x")
    StepAnnotation.objects.create(job=job, step=0, number=0, level="notice", message="x")
    MaskSnapshot.objects.get_or_create(job=job, defaults={"fence": 1, "sealed": b"x", "created_at": ended_at})
    TokenChain.objects.create(job_id=job.pk, fence=running.lease.fence, number=1)
    project = running.repository.project
    StoredArtifact.objects.create(
        job=job, batch=running.run.batch, name="report", organization=project.organization, project=project,
        object_key=f"actions/runs/{running.run.pk}/artifacts/report", byte_count=0, created_at=ended_at,
        upload_until=ended_at, completed_at=ended_at, expires_at=None,
    )  # fmt: skip


def counted() -> dict[str, float]:
    write_counts()
    return dict(Count.objects.filter(name="actions_runs_pruned").values_list("detail", "value"))


def prune() -> Counter[str]:
    """Delete what is old; it must be what the estimate says."""
    estimate = Counter({table: rows for table, rows in count_old_rows().items() if rows})
    deleted = +PruningTask().delete_all()
    assert estimate == deleted
    return deleted


def test_an_old_run_is_deleted_with_all_that_belongs_to_it(repository):
    before = counted().get("runs", 0)
    run_ended(repository, 366)
    young = run_ended(repository, 364)
    deleted = prune()
    assert list(WorkflowRun.objects.all()) == [young]
    assert {table for table, rows in deleted.items() if rows == 1} >= {
        "workflow_runs", "runtime_batches", "runtime_jobs", "runtime_worker_leases", "runtime_job_steps", "step_logs",
        "runtime_job_log_chunks", "step_log_waiting_chunks", "step_annotations", "runtime_mask_snapshots",
        "actions_token_chains",
    }  # fmt: skip
    jobs = set(Job.objects.values_list("job_ulid", flat=True))
    for model in (JobEvent, JobStep, LogChunk, StepLog, StepAnnotation, MaskSnapshot):
        assert set(model.objects.values_list("job_id", flat=True)) == jobs, model
    assert Batch.objects.count() == 1
    assert counted()["runs"] == before + 1


def test_its_objects_are_marked_for_housekeeping(repository):
    run = run_ended(repository, 366)
    key = run.batch.jobs.get().job_ulid
    prune()
    assert DiscardedLogObject.objects.get().name == f"actions/{key}.log"
    assert StoredArtifact.objects.get().is_abandoned


@pytest.mark.parametrize(("days", "remains"), [(364.9, True), (365.1, False)])
def test_the_age_is_counted_from_the_end_of_the_last_job(repository, days, remains):
    run_ended(repository, days)
    prune()
    assert WorkflowRun.objects.exists() == remains


def test_a_pinned_run_is_kept_for_ever(repository):
    run = run_ended(repository, 4000, pinned=True)
    assert +prune() == {}
    WorkflowRun.objects.update(pinned=False)
    prune()
    assert not WorkflowRun.objects.filter(pk=run.pk).exists()


def test_a_rerun_outlives_its_parent(repository):
    parent = run_ended(repository, 366)
    rerun = run_ended(repository, 1, parent=parent)
    prune()
    rerun.refresh_from_db()
    assert rerun.parent is None


@pytest.mark.parametrize(("jobs", "runs"), [(0, 30), (30, 0), (30, 400), (400, 30)])
def test_runs_and_other_jobs_have_periods_of_their_own(repository, settings, jobs, runs):
    settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"jobs": jobs, "workflow_runs": runs, "logs": 0}
    old = database_now() - timedelta(days=365)
    other = submitted(repository.project, now=old)
    claim = claimed(now=old)
    _fail(claim.lease, claim.lease.worker, old)
    run_ended(repository, 365)
    prune()
    assert WorkflowRun.objects.exists() == (runs != 30)
    assert Job.objects.filter(pk=other.pk).exists() == (jobs != 30)


def test_the_log_of_a_run_stays_as_long_as_the_run(repository, settings):
    settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"logs": 10}
    run_ended(repository, 100)
    assert +prune() == {}
    assert (StepLog.objects.count(), LogChunk.objects.count()) == (1, 1)


# --- parts of logs that no object has ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("days", "chunks"), [(6.9, 1), (7.1, 0)])
def test_chunks_that_no_object_has_are_deleted_seven_days_after_the_step(repository, days, chunks):
    run_ended(repository, days)
    StepLog.objects.update(needs_finalizing=True, stored_bytes=10)
    prune()
    assert LogChunk.objects.count() == chunks
    log = StepLog.objects.get()
    assert (log.needs_finalizing, log.is_truncated, log.stored_bytes) == (
        (True, False, 10) if chunks else (False, True, 5)
    )
    assert log.object_key
    assert counted().get("chunks", 0) >= 1 - chunks


def test_chunks_of_an_open_step_stay(repository):
    run_ended(repository, 30)
    StepLog.objects.update(needs_finalizing=True, closed_at=None)
    assert +prune() == {}


# --- logs of other types that are objects -----------------------------------------------------------------------------


def stored_log(repository, days: float) -> Job:
    ended_at = database_now() - timedelta(days=days)
    submitted(repository.project, now=ended_at)
    claim = claimed(now=ended_at)
    _fail(claim.lease, claim.lease.worker, ended_at)
    StepLog.objects.create(
        job_id=claim.job.job_ulid,
        step=0,
        object_key=f"{claim.job.job_ulid}.log",
        object_bytes=5,
        attempts=1,
        stored_bytes=5,
    )
    return claim.job


def test_a_stored_log_of_another_type_is_deleted_after_the_period_of_logs(repository):
    job, young = stored_log(repository, 91), stored_log(repository, 89)
    run_ended(repository, 91)
    assert +prune() == {"step_logs": 1}
    assert DiscardedLogObject.objects.get().name == f"{job.job_ulid}.log"
    assert StepLog.objects.filter(job_id=young.job_ulid).exists()


def test_a_pass_begins_where_the_last_one_ended_and_once_a_day_with_the_oldest_log(repository, monkeypatch):
    monkeypatch.setattr(pruners, "LOG_CHUNKS", 1)
    now, clock = database_now(), [0.0]
    for _ in range(3):
        run_ended(repository, 100)
    pruner = StoredLogPruner(monotonic=lambda: clock[0])
    before = pruner.cutoff(now)

    def steps() -> int:
        number = 1
        while pruner.step(before)[1]:
            number += 1
        return number

    assert [steps(), steps()] == [4, 1]
    stored_log(repository, 100)
    assert steps() >= 2
    assert StepLog.objects.count() == 3
    clock[0] = pruners.RESTART_SECONDS + 1
    steps()
    assert steps() >= 4
    assert isinstance(LogPruner(), pruners.WindowPruner)


# --- what events leave behind -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("days", "triggers", "rejections"), [(29, 1, 1), (31, 0, 1), (91, 0, 0)])
def test_events_and_diagnostics_have_periods_of_their_own(repository, days, triggers, rejections):
    then = database_now() - timedelta(days=days)
    common = {"repository": repository, "event": "push", "trigger_id": "push:1", "head_sha": "5" * 40}
    WorkflowTrigger.objects.create(**common, facts={}, received_at=then)
    RejectedWorkflow.objects.create(**common, workflow_file="ci.yml", diagnostics=[], created_at=then)
    prune()
    assert (WorkflowTrigger.objects.count(), RejectedWorkflow.objects.count()) == (triggers, rejections)


# --- objects and used tokens ------------------------------------------------------------------------------------------


def test_everything_that_is_due_at_a_fixed_time_is_deleted_with_its_objects(repository):
    from orchestrator.artifacts.storage import artifact_storage  # noqa: PLC0415 - after the settings
    from orchestrator.job_tokens.partitions import create_partitions, partition_days  # noqa: PLC0415 - likewise

    now = database_now()
    run = run_ended(repository, 0)
    artifact = StoredArtifact.objects.get()
    artifact_storage().put(artifact.object_key, [b""])
    first = now.date()
    create_partitions(first, 2)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO actions_used_tokens (expires_at, jti, runner_id, job_id, used_at)"
            " SELECT %s, 'x' || n, 1, 1, %s FROM generate_series(1, 50) n",
            [now, now],
        )
    later = now + timedelta(days=400)
    assert count_everything(now=later)["workflow_runs"] == 1
    deleted = delete_everything(now=later)
    assert deleted["workflow_runs"] == 1
    assert deleted["stored objects"] == 1
    assert not WorkflowRun.objects.filter(pk=run.pk).exists()
    assert not StoredArtifact.objects.exists()
    assert artifact_storage().size_of(artifact.object_key) is None
    assert first not in partition_days()
    assert count_everything(now=later)["stored objects"] == 0
