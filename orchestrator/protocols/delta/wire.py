"""What runners are told, as document 001 and its real client know it. Pure: domain objects in, dicts out."""

import math
from datetime import datetime
from typing import Any

from leases.models import Lease
from orchestrator.protocols.delta.states import CANCEL, CANCELED, STALE, STALE_LEASE
from runtime_jobs.models import Job
from runtime_jobs.specs import source_of
from runtime_jobs.states import JobState


def granted(lease: Lease, job: Job, *, run_id: str) -> dict[str, Any]:
    """LeaseGranted. The root stands for the job, so that a retry has the same `job_id`; the row is its attempt."""
    return {
        "type": "LeaseGranted",
        "run_id": run_id,
        "job_id": job.root_job_ulid,
        "attempt_id": job.job_ulid,
        "attempt_number": job.attempt,
        "lease_id": lease.lease_ulid,
        "lease_ttl_seconds": lease.ttl_seconds,
        # Strictly less than the lease lasts, whatever somebody has set.
        "heartbeat_interval_seconds": max(1, min(lease.heartbeat_interval_seconds, lease.ttl_seconds - 1)),
        "max_runtime_seconds": job.timeout_seconds or 0,
        "job_spec": job_spec(job),
    }


def job_spec(job: Job) -> dict[str, Any]:
    """A job of type `steps` in the documents' words; `image` and `source` only if the job wants them. For what is to be
    checked out the documents have no word."""
    spec = job.spec
    return {
        "name": spec["name"],
        "workdir": job.working_directory or ".",
        "steps": spec["steps"],
        "env": spec.get("environment") or {},
        "artifacts": [
            {"type": wanted["type"], "path_glob": wanted["path_glob"]} for wanted in spec.get("artifacts") or []
        ],
        "caches": spec.get("caches") or [],
        **({"image": spec["image"]} if spec.get("image") else {}),
        **({"source": source_of(job)} if job.repo_url else {}),
    }


def accepted(lease_id: str, job: Job) -> dict[str, Any]:
    """LeaseAccepted, the answer to AckLease: only a diagram of the documents has it, and the real runner reads nothing
    of it."""
    return {
        "type": "LeaseAccepted",
        "lease_id": lease_id,
        "job_id": job.root_job_ulid,
        "heartbeat_interval_seconds": job.heartbeat_interval_seconds,
        "max_runtime_seconds": job.timeout_seconds or 0,
    }


def heartbeat_ack(lease: Lease, job: Job, at: datetime) -> dict[str, Any]:
    """HeartbeatAck. `cancel_deadline_seconds` is what is left at `at`, rounded up; a cancel has a `cancel_reason`."""
    asked = job.cancel_requested_at is not None
    reason = {"cancel_reason": CANCEL[job.cancel_reason]} if asked and job.cancel_reason else {}
    return {
        "type": "HeartbeatAck",
        "lease_id": lease.lease_ulid,
        "extend_lease": True,
        "new_lease_ttl_seconds": lease.ttl_seconds,
        "cancel_requested": asked,
        "cancel_deadline_seconds": math.ceil(job.cancel_seconds_left(at) or 0),
        **reason,
    }


def complete_ack(lease_id: str, job: Job) -> dict[str, Any]:
    """CompleteAck. Not `accepted` where a cancel was faster: the message counts, but its result does not."""
    return {"type": "CompleteAck", "lease_id": lease_id, "accepted": job.state != JobState.CANCELED}


def cancel_finalized(lease_id: str, job: Job) -> dict[str, Any]:
    """The answer to CancelAck, by the name that a diagram of the documents has for it."""
    return {
        "type": "CancelFinalized",
        "lease_id": lease_id,
        "job_id": job.root_job_ulid,
        "final_status": CANCELED,
    }


def stale(lease_id: str, reason: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Every form in which the documents and the real code say that a lease is stale, in one object.

    `lease_id` is what the caller sent. `facts`: our own reason, and the job's status if that is final."""
    error = {"code": STALE_LEASE, "message": "stale lease", "lease_id": lease_id, "details": facts}
    return {"type": "StaleLease", "lease_id": lease_id, "reason": STALE[reason], "error": error}


# What a stale heartbeat is told besides: stop, now.
NO_MORE = {
    "extend_lease": False,
    "stale": True,
    "new_lease_ttl_seconds": 0,
    "cancel_requested": True,
    "cancel_deadline_seconds": 0,
}
