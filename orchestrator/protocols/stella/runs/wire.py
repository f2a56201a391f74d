"""JSON of runs. Pure functions: they run no query."""

from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson

from leases.models import Lease
from orchestrator.core.datetimes import format_timestamp
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, StoredArtifact
from runtime_jobs.orchestration_status import orchestration_status
from runtime_jobs.stop_requests import stop_request

_END = b"\nevent: end\ndata: "
# Names of the progress in the job, and here.
PROGRESS = {"percent": "percent", "current_step": "currentStep", "step_index": "stepIndex", "message": "message"}


def build_progress(validated: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the progress as a job stores it, or None: it stays as it is."""
    if validated is None:
        return None
    return {name: validated[member] for name, member in PROGRESS.items() if member in validated}


def serialize_progress(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the progress of a job with the names of a heartbeat here. Other names are those of another protocol."""
    return None if stored is None else {PROGRESS.get(name, name): value for name, value in stored.items()}


def serialize_log_end(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the last event of a log with the status that the job has here."""
    return content | {"status": str(orchestration_status(content["state"]))}


def serialize_log_events(batch: bytes) -> bytes:
    """Return events of a log, of which the last one may be the end, which is a batch of its own."""
    head, mark, data = batch.partition(_END)
    return head + mark + orjson.dumps(serialize_log_end(orjson.loads(data))) + b"\n\n" if mark else batch


def serialize_heartbeat(job: Job, lease: Lease, now: datetime) -> dict[str, Any]:
    """Return the response to a heartbeat. `cancelDeadlineSeconds` is the time left at `now`."""
    stop = stop_request(job, now)
    return {
        "runId": str(uuid_of(job.root_job_ulid)),
        "status": str(orchestration_status(job.state)),
        "leaseExpiresAt": format_timestamp(lease.expires_at),
        "cancelRequested": stop.is_requested,
        "cancelReason": stop.reason,
        "cancelDeadlineSeconds": stop.seconds_left,
    }


def serialize_artifact(artifact: StoredArtifact, attempt: Job) -> dict[str, Any]:
    """Return a complete artifact of an attempt."""
    return {
        "name": artifact.name,
        "attempt": attempt.attempt,
        "sizeBytes": artifact.byte_count,
        "sha256": artifact.sha256,
        "createdAt": format_timestamp(artifact.created_at),
        "expiresAt": format_timestamp(artifact.expires_at),
        "path": f"/runs/{uuid_of(attempt.root_job_ulid)}/artifacts/{quote(artifact.name)}",
    }
