"""JSON of jobs. Pure functions: they run no query."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.incidents.models import Incident
from orchestrator.protocols.stella.jobs.filters import level_of
from orchestrator.protocols.stella.runs.wire import serialize_progress as serialize_run_progress
from orchestrator.selectors.job_graph import DependencyGraph
from orchestrator.selectors.orchestration_statuses import JobStanding
from orchestrator.selectors.pending_reasons.reason import WaitReason
from orchestrator.services.job_end import OUTCOME_FIELDS
from runtime_jobs.identifiers import is_id, uuid_of
from runtime_jobs.models import Job
from runtime_jobs.orchestration_status import orchestration_status
from runtime_jobs.specs import JOB_TYPES, public_digest
from runtime_jobs.states import JobState


def job_uuid(job_ulid: str | None) -> str | None:
    """Return the UUID of a job, or None for None."""
    return None if job_ulid is None else str(uuid_of(job_ulid))


def serialize_listed_job(job: Job, standing: JobStanding, requested_at: str | None) -> dict[str, Any]:
    """Return a job as a list has it.

    Args:
        job: The newest attempt.
        standing: Its status.
        requested_at: When the client says that the job was requested, or None.
    """
    return {
        "jobId": job_uuid(job.root_job_ulid),
        "jobType": job.job_type,
        "tenant": job.org_slug,
        "project": job.project_slug,
        "status": str(standing.status),
        "nextEligibleAt": format_timestamp(standing.next_eligible_at),
        "priority": level_of(job.priority),
        "payloadDigest": public_digest(job.payload_digest),
        "correlationId": job.correlation_id,
        "replayOf": job_uuid(job.replay_of_job_ulid),
        "requestedBy": job.trigger_actor,
        "requestedAt": requested_at,
        "attempt": job.attempt,
        "cancelRequested": job.cancel_requested_at is not None,
        "createdAt": format_timestamp(job.created_at),
        "startedAt": format_timestamp(job.started_at),
        "completedAt": format_timestamp(job.finished_at),
    }


def serialize_request(job: Job, idempotency_key: str | None) -> dict[str, Any]:
    """Return what was submitted. Types without a payload have the specification of the native API as payload.

    Args:
        job: The job.
        idempotency_key: The key of the submit, while it is kept.
    """
    has_payload = JOB_TYPES[job.job_type].has_payload
    return {
        "payload": job.spec["payload"] if has_payload else JOB_TYPES[job.job_type].serialize(job),
        "cursors": job.spec["cursors"] if has_payload else {},
        "timeoutSeconds": job.timeout_seconds,
        "idempotencyKey": idempotency_key,
    }


def serialize_details(
    newest: Job,
    standing: JobStanding,
    *,
    idempotency_key: str | None,
    attempts: Sequence[Job],
    workers: dict[str, str],
    dependencies: Sequence[str],
    dependents: Sequence[str],
    replays: Sequence[str],
) -> dict[str, Any]:
    """Return the members that a single job has and a job in a list has not.

    Args:
        newest: The newest attempt.
        standing: Its status.
        idempotency_key: The key of the submit, while it is kept.
        attempts: All attempts in order.
        workers: The worker of the newest lease of each attempt, by the id of the attempt.
        dependencies: Root ids of the jobs that must succeed first.
        dependents: Root ids of the jobs that wait for this one.
        replays: Root ids of the replays.
    """
    return {
        **serialize_request(newest, idempotency_key),
        **serialize_progress(newest, standing),
        "result": serialize_result(newest),
        "attempts": [serialize_attempt(job, workers.get(job.job_ulid)) for job in attempts],
        "dependencies": [job_uuid(root) for root in dependencies],
        "dependents": [job_uuid(root) for root in dependents],
        "replays": [job_uuid(root) for root in replays],
    }


def serialize_progress(newest: Job, standing: JobStanding) -> dict[str, Any]:
    """Return why a job waits, how far it has come, and why it failed."""
    return {
        "pendingReason": serialize_reason(standing.reason),
        "queuePosition": standing.place,
        "progress": serialize_run_progress(newest.progress),
        "failure": serialize_failure(newest),
        "incident": serialize_incident(standing.incident),
    }


def serialize_attempt(job: Job, worker_id: str | None) -> dict[str, Any]:
    """Return one attempt of a job, with the worker of its newest lease."""
    return {
        "attempt": job.attempt,
        "attemptId": job_uuid(job.job_ulid),
        "status": str(orchestration_status(job.state)),
        "workerId": worker_id,
        "failure": serialize_failure(job),
        "createdAt": format_timestamp(job.created_at),
        "startedAt": format_timestamp(job.started_at),
        "completedAt": format_timestamp(job.finished_at),
    }


def serialize_result(job: Job) -> dict[str, Any] | None:
    """Return what a job has produced, or None while it has not ended."""
    if not job.is_final:
        return None
    reported = job.result or {}
    return {"exitCode": job.exit_code} | {name: reported.get(name) for name in OUTCOME_FIELDS}


def serialize_failure(job: Job) -> dict[str, Any] | None:
    """Return the reason of the failure or cancel, or None for any other job."""
    if job.state == JobState.CANCELED:
        return {"reason": job.cancel_reason, "class": None, "message": job.cancel_message or ""}
    if job.state != JobState.FAILED:
        return None
    return {"reason": job.failure_reason, "class": job.failure_class, "message": job.failure_message or ""}


def serialize_incident(incident: Incident | None) -> dict[str, Any] | None:
    """Return the open incident of a job, or None."""
    if incident is None:
        return None
    return {
        "incidentId": str(uuid_of(incident.incident_ulid)),
        "summary": incident.summary,
        "openedAt": format_timestamp(incident.opened_at),
    }


def serialize_reason(reason: WaitReason | None) -> dict[str, Any] | None:
    """Return why a job waits, or None for a job that does not wait."""
    if reason is None:
        return None
    details = {_camel(name): _value(value) for name, value in reason.facts.items()}
    return {"code": str(reason.code), "message": _with_uuids(reason.message), "details": details}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_timestamp(value)
    if isinstance(value, list):
        return [_value(inner) for inner in value]
    if isinstance(value, dict):
        return {_camel(name): _value(inner) for name, inner in value.items()}
    return str(uuid_of(value)) if isinstance(value, str) and is_id(value, "rtj") else value


def _with_uuids(message: str) -> str:
    words = [word.rstrip(",.") for word in message.split()]
    for word in words:
        if is_id(word, "rtj"):
            message = message.replace(word, str(uuid_of(word)))
    return message


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def serialize_graph(graph: DependencyGraph, standings: dict[int, JobStanding], now: datetime) -> dict[str, Any]:
    """Return the dependencies of a job as nodes and edges.

    Args:
        graph: The graph.
        standings: The statuses of the jobs by their keys.
        now: The present time, for jobs that run.
    """
    path = graph.critical_path(now)
    return {
        "jobId": job_uuid(graph.root),
        "nodes": [_serialize_node(job, standings[job.pk], graph.seconds_of(job, now)) for job in graph.jobs.values()],
        "edges": [
            {"from": job_uuid(edge.on), "to": job_uuid(edge.job), "needsSuccess": edge.needs_success}
            for edge in graph.edges
        ],
        "criticalPath": {
            "jobIds": [job_uuid(root) for root in path],
            "seconds": round(sum(graph.seconds_of(graph.jobs[root], now) for root in path), 3),
        },
        "truncated": graph.is_truncated,
    }


def _serialize_node(job: Job, standing: JobStanding, seconds: float) -> dict[str, Any]:
    return {
        "jobId": job_uuid(job.root_job_ulid),
        "jobType": job.job_type,
        "status": str(standing.status),
        "attempt": job.attempt,
        "seconds": round(seconds, 3),
        "createdAt": format_timestamp(job.created_at),
        "startedAt": format_timestamp(job.started_at),
        "completedAt": format_timestamp(job.finished_at),
    }
