"""A run as document 001's API shows it. Pure: domain objects in, dicts out.

The run is a batch; the root of a job's attempts stands for the job, and each row is one attempt of it."""

import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from orchestrator.protocols.delta.runs_words import CANCEL_REQUESTED, JOB, RUN, TIMED_OUT
from runtime_jobs.batch_state import BatchState
from runtime_jobs.models import Artifact, Batch, FailureExplanation, Job
from runtime_jobs.states import FailureReason, JobState


def moment(at: datetime | None) -> str | None:
    """RFC 3339 in UTC."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def run(batch: Batch, state: BatchState, jobs: Sequence[Job], optional: Sequence[str]) -> dict[str, Any]:
    """`jobs`: all attempts, by root and number, with their artifacts and explanation at hand."""
    changed = [one for one in (batch.created_at, batch.cancel_requested_at) if one]
    shown = {
        "id": batch.batch_ulid,
        "repo_id": repository(batch),
        "ref": batch.git_ref,
        "commit_sha": batch.git_commit,
        "state": RUN[state],
        "created_at": moment(batch.created_at),
        "updated_at": moment(max([*changed, *(one.updated_at for one in jobs)])),
    }
    by_root = [(root, list(rows)) for root, rows in groupby(jobs, key=lambda one: one.root_job_ulid)]
    by_root.sort(key=lambda pair: pair[1][0].pk)
    return {"run": shown, "jobs": [_job(batch, rows, required=root not in optional) for root, rows in by_root]}


def repository(batch: Batch) -> str | None:
    """`owner/name`."""
    return "/".join(batch.repo_url.removesuffix(".git").split("/")[-2:]) if batch.repo_url else None


def _job(batch: Batch, attempts: list[Job], *, required: bool) -> dict[str, Any]:
    first, newest = attempts[0], attempts[-1]
    why = newest.failure_reason or newest.cancel_reason
    return {
        "job": {
            "id": first.root_job_ulid,
            "run_id": batch.batch_ulid,
            "name": newest.spec.get("name") or shlex.join(newest.command_json or ()),
            "required": required,
            "state": word(newest),
            "attempt_count": len(attempts),
            **({"reason": why} if why else {}),
            "created_at": moment(first.created_at),
            "updated_at": moment(newest.updated_at),
        },
        "attempts": [_attempt(one) for one in attempts],
        "artifacts": [_artifact(one) for job in attempts for one in job.artifacts.all()],
        "failure_explanations": [_explanation(one) for one in _explanations(attempts)],
    }


def word(job: Job) -> str:
    if not job.is_final and job.cancel_requested_at is not None:
        return CANCEL_REQUESTED
    if job.state == JobState.FAILED and job.failure_reason == FailureReason.TIMED_OUT:
        return TIMED_OUT
    return JOB[job.state]


def _attempt(job: Job) -> dict[str, Any]:
    times = {"started_at": moment(job.started_at), "completed_at": moment(job.finished_at)}
    return {
        "id": job.job_ulid,
        "job_id": job.root_job_ulid,
        "attempt_number": job.attempt,
        "state": word(job),
        "created_at": moment(job.created_at),
        "updated_at": moment(job.updated_at),
        **{name: at for name, at in times.items() if at},
    }


def _artifact(artifact: Artifact) -> dict[str, Any]:
    return {
        "id": artifact.pk,
        "job_attempt_id": artifact.job_id,
        "type": artifact.type,
        "uri": artifact.uri,
        "created_at": moment(artifact.created_at),
    }


def _explanations(attempts: Iterable[Job]) -> Iterable[FailureExplanation]:
    return (job.explanation for job in attempts if hasattr(job, "explanation"))


def _explanation(found: FailureExplanation) -> dict[str, Any]:
    return {
        "id": found.pk,
        "job_attempt_id": found.job_id,
        "category": found.category,
        "summary": found.summary,
        "confidence": found.confidence,
        **({"details": found.details} if found.details else {}),
        "created_at": moment(found.created_at),
    }
