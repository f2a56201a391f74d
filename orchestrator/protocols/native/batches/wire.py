"""JSON of batches, workflow runs and checks. Pure functions: they run no query."""

from collections.abc import Iterable
from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.workflows.run_reads import RunStatus, job_status, state_from_jobs
from runtime_jobs.batch_state import BatchState
from runtime_jobs.models import Batch, Job, WorkflowRun
from runtime_jobs.specs.actions import conclusion_of

CHECK_STATUSES = {RunStatus.QUEUED: "queued", RunStatus.RUNNING: "in_progress", RunStatus.COMPLETED: "completed"}


def serialize_batch(batch: Batch, state: BatchState, run: WorkflowRun | None, jobs: list[Job]) -> dict[str, Any]:
    """Return a batch as lists contain it.

    Args:
        batch: The batch.
        state: Its state.
        run: Its workflow run with the repository, or None.
        jobs: All jobs of the batch, each with `job_key`.
    """
    return {
        "batch_id": batch.batch_ulid,
        "org_slug": batch.org_slug,
        "project_slug": batch.project_slug,
        "state": str(state),
        "created_at": format_timestamp(batch.created_at),
        "git_ref": batch.git_ref,
        "git_commit": batch.git_commit,
        "trigger": {"kind": batch.trigger_kind, "actor": batch.trigger_actor},
        "rerun_of": batch.rerun_of,
        "cancel_requested": batch.cancel_requested_at is not None,
        "correlation_id": batch.correlation_id,
        "run": serialize_run(run, jobs) if run else None,
    }


def serialize_run(run: WorkflowRun, jobs: list[Job]) -> dict[str, Any]:
    """Return the workflow run of a batch; `jobs` are those of the batch, each with `job_key`."""
    state = state_from_jobs(run, jobs)
    return {
        "run_id": run.pk,
        "run_index": run.run_index,
        "repository": run.repository.full_name,
        "workflow_file": run.workflow_file,
        "workflow_name": run.workflow_name,
        "event": run.event,
        "status": str(state.status),
        "conclusion": state.conclusion,
        "completed_at": format_timestamp(run.completed_at),
        "hold": run.hold or None,
        "concurrency_group": run.concurrency_group or None,
        "from_fork": run.from_fork,
        "approved_by": run.approved_by or None,
        "approved_at": format_timestamp(run.approved_at),
        "pinned": run.pinned,
        "parent_run_id": run.parent_id,
        "reason": run.reason,
        "edits": run.edits,
    }


def serialize_jobs(run: WorkflowRun | None, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Return the jobs of a batch: those of a run in the order of its file, with those taken over from its parent."""
    own = [_serialize_job(job) for job in jobs]
    if run is None:
        return own
    taken_over = [
        {
            "job_id": None,
            "id": carried.get("job_id"),
            "job_key": key,
            "name": carried.get("name", key),
            "needs": carried["needs"],
            "state": None,
            "status": str(RunStatus.COMPLETED),
            "conclusion": carried["conclusion"],
            "started_at": None,
            "finished_at": None,
            "taken_over": True,
        }
        for key, carried in run.carried.items()
    ]
    return sorted([*own, *taken_over], key=lambda job: run.job_keys.index(job["job_key"]))


def _serialize_job(job: Job) -> dict[str, Any]:
    key = getattr(job, "job_key", None)
    return {
        "job_id": job.job_ulid,
        "id": job.pk,
        "job_key": key,
        "name": getattr(job, "job_name", None) or key or job.job_type,
        "needs": getattr(job, "job_needs", None) or [],
        "state": str(job.state),
        "status": str(job_status(job)),
        "conclusion": conclusion_of(job),
        "started_at": format_timestamp(job.started_at),
        "finished_at": format_timestamp(job.finished_at),
        "taken_over": False,
    }


def serialize_check(job: Job, run: WorkflowRun) -> dict[str, Any]:
    """Return a job of a workflow run as a check of its commit. The job has `job_key` and `job_name`."""
    key = getattr(job, "job_key", "")
    return {
        "check_id": job.pk,
        "app": "shithub-actions",
        "name": getattr(job, "job_name", "") or key,
        "external_id": f"workflow_run:{run.pk}:job:{key}",
        "repository": run.repository.full_name,
        "head_sha": run.head_sha,
        "status": CHECK_STATUSES[job_status(job)],
        "conclusion": conclusion_of(job),
        "started_at": format_timestamp(job.started_at),
        "completed_at": format_timestamp(job.finished_at),
        "run_id": run.pk,
        "run_index": run.run_index,
        "workflow_file": run.workflow_file,
        "batch_id": run.batch.batch_ulid,
        "job_id": job.job_ulid,
    }
