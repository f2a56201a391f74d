"""JSON of jobs and their events. Pure functions: they run no query."""

from datetime import datetime
from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.selectors.job_steps import StepState
from orchestrator.selectors.pending_reasons.service import PendingState
from runtime_jobs.models import Artifact, FailureExplanation, Job, JobEvent, StepAnnotation
from runtime_jobs.specs import JOB_TYPES, execution_of, source_of
from runtime_jobs.states import JobState


def serialize_runtime_job(job: Job) -> dict[str, Any]:
    """Return a job of type `runtime` as in document 000."""
    return _common_fields(job) | {"source": source_of(job), "execution": execution_of(job)}


def serialize_any_job(job: Job) -> dict[str, Any]:
    """Return a job of any type, with its spec as submitted and the result as reported by its worker."""
    return _common_fields(job) | {
        "job_type": job.job_type,
        "spec": JOB_TYPES[job.job_type].serialize(job),
        "batch_id": job.batch.batch_ulid if job.batch else None,
        "result": job.result,
    }


def _common_fields(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_ulid,
        "status": job.public_status,
        "state": str(job.state),
        "created_at": format_timestamp(job.created_at),
        "started_at": format_timestamp(job.started_at),
        "finished_at": format_timestamp(job.finished_at),
        "org_slug": job.org_slug,
        "project_slug": job.project_slug,
        "trigger": {"kind": job.trigger_kind, "actor": job.trigger_actor},
        "pool": job.pool,
        "trace": job.trace,
        "priority": job.priority,
        "concurrency_key": job.concurrency_key or None,
        "attempt": job.attempt,
        "retry_of": job.retry_of_job_ulid,
        "root_job_id": job.root_job_ulid,
        "cancel_requested": job.cancel_requested_at is not None,
        "ingest_run_id": job.ingest_run_id,
        "exit_code": job.exit_code,
        "failure": serialize_failure(job),
        "correlation_id": job.correlation_id,
    }


def serialize_failure(job: Job) -> dict[str, Any] | None:
    """Return the reason of the failure or cancel, or None for any other job."""
    if job.state == JobState.CANCELED:
        return {"reason": job.cancel_reason, "class": None, "message": job.cancel_message or ""}
    if job.state != JobState.FAILED:
        return None
    return {"reason": job.failure_reason, "class": job.failure_class, "message": job.failure_message}


def serialize_pending_state(pending: PendingState) -> dict[str, Any]:
    """Return the queue position and the pending reason; both are None for a job that does not wait."""
    reason = pending.reason
    if reason is None:
        return {"queue_position": pending.place, "pending_reason": None}
    facts = {
        name: format_timestamp(value) if isinstance(value, datetime) else value for name, value in reason.facts.items()
    }
    return {
        "queue_position": pending.place,
        "pending_reason": {"code": str(reason.code), "message": reason.message, **facts},
    }


def serialize_details(
    job: Job,
    *,
    idempotency_key: str | None,
    last_event: JobEvent | None,
    depends_on: list[str],
    retries: list[str],
    artifacts: list[Artifact],
    explanation: FailureExplanation | None,
) -> dict[str, Any]:
    """Return the fields that a single job has and a job in a list has not.

    Args:
        job: The job.
        idempotency_key: The key of the request that created this attempt, while it is kept.
        last_event: Its newest event.
        depends_on: Ids of the first attempts of its dependencies.
        retries: Ids of the newer attempts of the job.
        artifacts: Artifacts of this attempt.
        explanation: Probable cause of a failure.
    """
    return {
        "idempotency_key": idempotency_key,
        "progress": job.progress,
        "log_truncated": (job.result or {}).get("log_truncated"),
        "last_event": serialize_event(last_event) if last_event else None,
        "depends_on": depends_on,
        "retries": retries,
        "artifacts": [_serialize_artifact(artifact) for artifact in artifacts],
        "explanation": _serialize_explanation(explanation) if explanation else None,
    }


def _serialize_artifact(artifact: Artifact) -> dict[str, Any]:
    return {
        "artifact_id": artifact.artifact_ulid,
        "type": artifact.type,
        "uri": artifact.uri,
        "created_at": format_timestamp(artifact.created_at),
    }


def _serialize_explanation(explanation: FailureExplanation) -> dict[str, Any]:
    return {name: getattr(explanation, name) for name in ("category", "confidence", "summary", "details")}


def serialize_step(step: StepState) -> dict[str, Any]:
    """Return a step with the state of its log. Fields of the workflow file are null for other job types."""
    return {
        "step": step.index,
        "id": step.key,
        "step_id": step.step_id or None,
        "name": step.display_name,
        "run": step.run or None,
        "uses": step.uses or None,
        "status": step.status,
        "conclusion": step.conclusion,
        "started_at": format_timestamp(step.started_at),
        "completed_at": format_timestamp(step.completed_at),
        "log_bytes": step.log_bytes,
        "log_is_truncated": step.log_is_truncated,
        "annotation_count": step.annotation_count,
    }


def serialize_annotation(annotation: StepAnnotation) -> dict[str, Any]:
    """Return an annotation. Its texts were printed by a program: display them as text only."""
    return {
        "id": annotation.pk,
        "step": annotation.step,
        "level": annotation.level,
        "title": annotation.title or None,
        "message": annotation.message,
        "path": annotation.path or None,
        "start_line": annotation.start_line,
        "end_line": annotation.end_line,
        "start_column": annotation.start_column,
        "end_column": annotation.end_column,
    }


def serialize_event(event: JobEvent) -> dict[str, Any]:
    """Return one event of the event history."""
    return {
        "event_id": event.event_ulid,
        "seq": event.seq,
        "event_type": event.event_type,
        "created_at": format_timestamp(event.created_at),
        "actor": {"kind": event.actor_kind, "id": event.actor_id},
        "worker_id": event.worker_id,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "fence": event.fence,
        "payload": event.payload_json,
        "hash": event.hash,
    }
