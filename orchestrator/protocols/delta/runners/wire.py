"""Messages to runners, as in document 001 and as its real client reads them. Pure functions: they run no query."""

import math
from datetime import datetime
from typing import Any

from leases.models import Lease
from orchestrator.protocols.delta.states import CANCEL, CANCELED, STALE, STALE_LEASE
from runtime_jobs.models import Job
from runtime_jobs.specs import source_of
from runtime_jobs.states import JobState

# Further members of a stale heartbeat: the runner must stop now.
STALE_HEARTBEAT = {
    "extend_lease": False,
    "stale": True,
    "new_lease_ttl_seconds": 0,
    "cancel_requested": True,
    "cancel_deadline_seconds": 0,
}


def lease_granted(lease: Lease, job: Job, *, run_id: str) -> dict[str, Any]:
    """Return LeaseGranted. `job_id` is the first attempt, so that a retry has the same `job_id`."""
    return {
        "type": "LeaseGranted",
        "run_id": run_id,
        "job_id": job.root_job_ulid,
        "attempt_id": job.job_ulid,
        "attempt_number": job.attempt,
        "lease_id": lease.lease_ulid,
        "lease_ttl_seconds": lease.ttl_seconds,
        # The documents require less than the lease's duration, whatever is configured.
        "heartbeat_interval_seconds": max(1, min(lease.heartbeat_interval_seconds, lease.ttl_seconds - 1)),
        "max_runtime_seconds": job.timeout_seconds or 0,
        "job_spec": job_spec(job),
    }


def job_spec(job: Job) -> dict[str, Any]:
    """Return a job of type `steps`. `image` and `source` are present only if the job has them.

    `source` is an extension: the documents do not say what to check out.
    """
    spec = job.spec
    return {
        "name": spec["name"],
        "workdir": job.working_directory or ".",
        "steps": spec["steps"],
        "env": spec.get("environment") or {},
        "artifacts": [
            {"type": pattern["type"], "path_glob": pattern["path_glob"]} for pattern in spec.get("artifacts") or []
        ],
        "caches": spec.get("caches") or [],
        **({"image": spec["image"]} if spec.get("image") else {}),
        **({"source": source_of(job)} if job.repo_url else {}),
    }


def lease_accepted(lease_id: str, job: Job) -> dict[str, Any]:
    """Return LeaseAccepted, the response to AckLease.

    Only a diagram of the documents has this message, and the real runner ignores it.
    """
    return {
        "type": "LeaseAccepted",
        "lease_id": lease_id,
        "job_id": job.root_job_ulid,
        "heartbeat_interval_seconds": job.heartbeat_interval_seconds,
        "max_runtime_seconds": job.timeout_seconds or 0,
    }


def heartbeat_ack(lease: Lease, job: Job, now: datetime) -> dict[str, Any]:
    """Return HeartbeatAck. `cancel_deadline_seconds` is the time left at `now`, rounded up."""
    cancel_requested = job.cancel_requested_at is not None
    reason = {"cancel_reason": CANCEL[job.cancel_reason]} if cancel_requested and job.cancel_reason else {}
    return {
        "type": "HeartbeatAck",
        "lease_id": lease.lease_ulid,
        "extend_lease": True,
        "new_lease_ttl_seconds": lease.ttl_seconds,
        "cancel_requested": cancel_requested,
        "cancel_deadline_seconds": math.ceil(job.cancel_seconds_left(now) or 0),
        **reason,
    }


def complete_ack(lease_id: str, job: Job) -> dict[str, Any]:
    """Return CompleteAck. `accepted` is false if the job was canceled first, so that the result does not count."""
    return {"type": "CompleteAck", "lease_id": lease_id, "accepted": job.state != JobState.CANCELED}


def cancel_finalized(lease_id: str, job: Job) -> dict[str, Any]:
    """Return CancelFinalized, the response to CancelAck. The name comes from a diagram of the documents."""
    return {
        "type": "CancelFinalized",
        "lease_id": lease_id,
        "job_id": job.root_job_ulid,
        "final_status": CANCELED,
    }


def stale_lease(lease_id: str, reason: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the error for a stale lease, in all forms that the documents and the real code use.

    Args:
        lease_id: The lease id in the request.
        reason: Reason of this server.
        facts: The same reason, and the status of the job if it is final.
    """
    error = {"code": STALE_LEASE, "message": "stale lease", "lease_id": lease_id, "details": facts}
    return {"type": "StaleLease", "lease_id": lease_id, "reason": STALE[reason], "error": error}
