"""JSON of runs. Pure functions: they run no query."""

from datetime import datetime
from typing import Any
from urllib.parse import quote

from leases.models import Lease
from orchestrator.http.api.datetimes import format_timestamp
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, StoredArtifact
from runtime_jobs.orchestration_status import orchestration_status

# Names of the progress in the job, and here.
PROGRESS = {"percent": "percent", "current_step": "currentStep", "step_index": "stepIndex", "message": "message"}


def build_progress(validated: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the progress as a job stores it, or None: it stays as it is."""
    if validated is None:
        return None
    return {name: validated[member] for name, member in PROGRESS.items() if member in validated}


def serialize_heartbeat(job: Job, lease: Lease, now: datetime) -> dict[str, Any]:
    """Return the response to a heartbeat. `cancelDeadlineSeconds` is the time left at `now`."""
    return {
        "runId": str(uuid_of(job.root_job_ulid)),
        "status": str(orchestration_status(job.state)),
        "leaseExpiresAt": format_timestamp(lease.expires_at),
        "cancelRequested": job.cancel_requested_at is not None,
        "cancelReason": job.cancel_reason,
        "cancelDeadlineSeconds": job.cancel_seconds_left(now),
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
