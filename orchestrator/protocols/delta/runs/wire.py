"""JSON of a run (document 001). Pure functions: they run no query.

A run is a batch. The first attempt identifies the job of a run, and each row of `Job` is one attempt.
"""

import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.protocols.delta.states import CANCEL_REQUESTED, RUN_JOB_STATES, RUN_STATES, TIMED_OUT
from runtime_jobs.batch_state import BatchState
from runtime_jobs.models import Artifact, Batch, FailureExplanation, Job
from runtime_jobs.states import FailureReason, JobState


def serialize_run(batch: Batch, state: BatchState, jobs: Sequence[Job], optional: Sequence[str]) -> dict[str, Any]:
    """Return a run with its jobs and their attempts.

    Args:
        batch: The run.
        state: State of the run.
        jobs: All attempts, ordered by root and number, with artifacts and explanation prefetched.
        optional: Root ids of the jobs that may fail without failing the run.
    """
    changes = [timestamp for timestamp in (batch.created_at, batch.cancel_requested_at) if timestamp]
    run = {
        "id": batch.batch_ulid,
        "repo_id": repository_of(batch),
        "ref": batch.git_ref,
        "commit_sha": batch.git_commit,
        "state": RUN_STATES[state],
        "created_at": format_timestamp(batch.created_at),
        "updated_at": format_timestamp(max([*changes, *(job.updated_at for job in jobs)])),
    }
    by_root = [(root, list(attempts)) for root, attempts in groupby(jobs, key=lambda job: job.root_job_ulid)]
    by_root.sort(key=lambda group: group[1][0].pk)
    return {
        "run": run,
        "jobs": [_serialize_job(batch, attempts, required=root not in optional) for root, attempts in by_root],
    }


def repository_of(batch: Batch) -> str | None:
    """Return `owner/name`, or None for a run without repository."""
    return "/".join(batch.repo_url.removesuffix(".git").split("/")[-2:]) if batch.repo_url else None


def _serialize_job(batch: Batch, attempts: list[Job], *, required: bool) -> dict[str, Any]:
    first, newest = attempts[0], attempts[-1]
    reason = newest.failure_reason or newest.cancel_reason
    return {
        "job": {
            "id": first.root_job_ulid,
            "run_id": batch.batch_ulid,
            "name": newest.spec.get("name") or shlex.join(newest.command_json or ()),
            "required": required,
            "state": state_of_job(newest),
            "attempt_count": len(attempts),
            **({"reason": reason} if reason else {}),
            "created_at": format_timestamp(first.created_at),
            "updated_at": format_timestamp(newest.updated_at),
        },
        "attempts": [_serialize_attempt(job) for job in attempts],
        "artifacts": [_serialize_artifact(artifact) for job in attempts for artifact in job.artifacts.all()],
        "failure_explanations": [_serialize_explanation(explanation) for explanation in _explanations(attempts)],
    }


def state_of_job(job: Job) -> str:
    """Return the state of a job or attempt in the terms of document 001."""
    if not job.is_final and job.cancel_requested_at is not None:
        return CANCEL_REQUESTED
    if job.state == JobState.FAILED and job.failure_reason == FailureReason.TIMED_OUT:
        return TIMED_OUT
    return RUN_JOB_STATES[job.state]


def _serialize_attempt(job: Job) -> dict[str, Any]:
    times = {"started_at": format_timestamp(job.started_at), "completed_at": format_timestamp(job.finished_at)}
    return {
        "id": job.job_ulid,
        "job_id": job.root_job_ulid,
        "attempt_number": job.attempt,
        "state": state_of_job(job),
        "created_at": format_timestamp(job.created_at),
        "updated_at": format_timestamp(job.updated_at),
        **{name: timestamp for name, timestamp in times.items() if timestamp},
    }


def _serialize_artifact(artifact: Artifact) -> dict[str, Any]:
    return {
        "id": artifact.pk,
        "job_attempt_id": artifact.job_id,
        "type": artifact.type,
        "uri": artifact.uri,
        "created_at": format_timestamp(artifact.created_at),
    }


def _explanations(attempts: Iterable[Job]) -> Iterable[FailureExplanation]:
    return (job.explanation for job in attempts if hasattr(job, "explanation"))


def _serialize_explanation(explanation: FailureExplanation) -> dict[str, Any]:
    return {
        "id": explanation.pk,
        "job_attempt_id": explanation.job_id,
        "category": explanation.category,
        "summary": explanation.summary,
        "confidence": explanation.confidence,
        **({"details": explanation.details} if explanation.details else {}),
        "created_at": format_timestamp(explanation.created_at),
    }
