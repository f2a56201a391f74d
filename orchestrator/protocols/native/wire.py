"""Domain objects as the native API shows them (document 000). Pure: no query is made here."""

from datetime import UTC, datetime
from typing import Any

from leases.models import Lease
from orchestrator.selectors.pending_reasons.service import PendingState
from runtime_jobs.models import Artifact, FailureExplanation, Job, JobEvent
from runtime_jobs.specs import JOB_TYPES, execution_of, source_of
from runtime_jobs.states import JobState


def moment(at: datetime | None) -> str | None:
    """RFC 3339 in UTC."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def job(row: Job) -> dict[str, Any]:
    """A runtime job as lists show it, and as submit, cancel and retry answer (document 000)."""
    return _job(row) | {"source": source_of(row), "execution": execution_of(row)}


def any_job(row: Job) -> dict[str, Any]:
    """The same of a job of any type. `spec` is what was submitted, `result` what its worker told of it."""
    return _job(row) | {
        "job_type": row.job_type,
        "spec": JOB_TYPES[row.job_type].shown(row),
        "batch_id": row.batch.batch_ulid if row.batch else None,
        "result": row.result,
    }


def _job(row: Job) -> dict[str, Any]:
    return {
        "job_id": row.job_ulid,
        "status": row.public_status,
        "state": str(row.state),
        "created_at": moment(row.created_at),
        "started_at": moment(row.started_at),
        "finished_at": moment(row.finished_at),
        "org_slug": row.org_slug,
        "project_slug": row.project_slug,
        "trigger": {"kind": row.trigger_kind, "actor": row.trigger_actor},
        "pool": row.pool,
        "priority": row.priority,
        "concurrency_key": row.concurrency_key or None,
        "attempt": row.attempt,
        "retry_of": row.retry_of_job_ulid,
        "root_job_id": row.root_job_ulid,
        "cancel_requested": row.cancel_requested_at is not None,
        "ingest_run_id": row.ingest_run_id,
        "exit_code": row.exit_code,
        "failure": failure(row),
        "correlation_id": row.correlation_id,
    }


def failure(row: Job) -> dict[str, Any] | None:
    """Why it failed or was canceled, or None."""
    if row.state == JobState.CANCELED:
        return {"reason": row.cancel_reason, "class": None, "message": row.cancel_message or ""}
    if row.state != JobState.FAILED:
        return None
    return {"reason": row.failure_reason, "class": row.failure_class, "message": row.failure_message}


def waiting(found: PendingState) -> dict[str, Any]:
    """Where a job stands in the queue and why it waits: null, both, for one that does not."""
    why = found.reason
    told = (
        {name: moment(fact) if isinstance(fact, datetime) else fact for name, fact in why.facts.items()} if why else {}
    )
    reason = {"code": str(why.code), "message": why.message, **told} if why else None
    return {"queue_position": found.place, "pending_reason": reason}


def details(
    row: Job,
    *,
    last_event: JobEvent | None,
    depends_on: list[str],
    retries: list[str],
    artifacts: list[Artifact],
    explanation: FailureExplanation | None,
) -> dict[str, Any]:
    """What one job shows besides what a list shows of it."""
    return {
        "progress": row.progress,
        "last_event": event(last_event) if last_event else None,
        "depends_on": depends_on,
        "retries": retries,
        "artifacts": [_artifact(one) for one in artifacts],
        "explanation": _explanation(explanation) if explanation else None,
    }


def _artifact(row: Artifact) -> dict[str, Any]:
    return {"artifact_id": row.artifact_ulid, "type": row.type, "uri": row.uri, "created_at": moment(row.created_at)}


def _explanation(row: FailureExplanation) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("category", "confidence", "summary", "details")}


def event(row: JobEvent) -> dict[str, Any]:
    return {
        "event_id": row.event_ulid,
        "seq": row.seq,
        "event_type": row.event_type,
        "created_at": moment(row.created_at),
        "actor": {"kind": row.actor_kind, "id": row.actor_id},
        "worker_id": row.worker_id,
        "from_state": row.from_state,
        "to_state": row.to_state,
        "fence": row.fence,
        "payload": row.payload_json,
        "hash": row.hash,
    }


def claimed(lease: Lease, row: Job, *, egress: list[str], unsent_run: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a worker gets with a claim: document 000's example, and what it needs besides.

    `unsent_run`: the run to upload instead of executing anything."""
    resend = {} if unsent_run is None else {"unsent_run": unsent_run}
    return {
        "lease_id": lease.lease_ulid,
        "job": {
            "job_id": row.job_ulid,
            "org_slug": row.org_slug,
            "project_slug": row.project_slug,
            "job_type": row.job_type,
            **JOB_TYPES[row.job_type].leased(row, {"least_isolation": row.least_isolation, "egress": egress}),
            "trigger": {"kind": row.trigger_kind, "actor": row.trigger_actor},
            "attempt": row.attempt,
            "retry_of": row.retry_of_job_ulid,
            "fence": lease.fence,
            "heartbeat_interval_seconds": lease.heartbeat_interval_seconds,
            "lease_ttl_seconds": lease.ttl_seconds,
            "acknowledge_within_seconds": lease.acknowledge_within_seconds,
            **resend,
        },
        "lease_expires_at": moment(lease.expires_at),
    }


def told(sent: dict[str, Any], *also: str) -> dict[str, Any]:
    """What of a final message is kept as the job's result: JSON, as it will be shown."""
    kept = {name: sent[name] for name in ("files", "files_omitted", *also) if name in sent}
    if "steps" in sent:
        kept["steps"] = [
            step | {name: moment(step[name]) for name in ("started_at", "finished_at")} for step in sent["steps"]
        ]
    return kept


def ended(row: Job) -> dict[str, Any]:
    """The answer to most messages about a lease."""
    return {"job_id": row.job_ulid, "status": row.public_status}


def renewed(row: Job, lease: Lease, at: datetime) -> dict[str, Any]:
    """The answer to a heartbeat. `cancel_deadline_seconds` counts from the server's clock now."""
    return ended(row) | {
        "lease_expires_at": moment(lease.expires_at),
        "cancel_requested": row.cancel_requested_at is not None,
        "cancel_reason": row.cancel_reason,
        "cancel_deadline_seconds": row.cancel_seconds_left(at),
    }
