"""JSON of leases: what a claim and a heartbeat answer. Pure functions: they run no query."""

from datetime import datetime
from typing import Any

from leases.models import Lease
from orchestrator.core.datetimes import format_timestamp
from orchestrator.results.outputs import OUTPUT_MEMBER
from orchestrator.services.job_end import OUTCOME_FIELDS
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.stop_requests import stop_request


def serialize_lease(
    lease: Lease,
    job: Job,
    *,
    egress: list[str],
    unsent_run: dict[str, Any] | None = None,
    image: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a new lease with its job, as in document 000.

    Args:
        lease: The lease.
        job: The job of the lease.
        egress: Hosts that the organization allows its jobs to reach; empty for a job without network.
        unsent_run: A run to upload instead of executing the job.
        image: The machine and the pull token of an `oci` job.
    """
    confined = {"least_isolation": job.least_isolation, "egress": egress, "trace": job.trace} | (image or {})
    resend = {} if unsent_run is None else {"unsent_run": unsent_run}
    return {
        "lease_id": lease.lease_ulid,
        "job": {
            "job_id": job.job_ulid,
            "org_slug": job.org_slug,
            "project_slug": job.project_slug,
            "job_type": job.job_type,
            **JOB_TYPES[job.job_type].serialize_for_lease(job, confined),
            "trigger": {"kind": job.trigger_kind, "actor": job.trigger_actor},
            "attempt": job.attempt,
            "retry_of": job.retry_of_job_ulid,
            "fence": lease.fence,
            "heartbeat_interval_seconds": lease.heartbeat_interval_seconds,
            "lease_ttl_seconds": lease.ttl_seconds,
            "acknowledge_within_seconds": lease.acknowledge_within_seconds,
            **resend,
        },
        "lease_expires_at": format_timestamp(lease.expires_at),
    }


def serialize_status(job: Job) -> dict[str, Any]:
    """Return the response to most messages about a lease."""
    return {"job_id": job.job_ulid, "status": job.public_status}


def serialize_heartbeat(job: Job, lease: Lease, now: datetime) -> dict[str, Any]:
    """Return the response to a heartbeat. `cancel_deadline_seconds` is the time left at `now`."""
    stop = stop_request(job, now)
    return serialize_status(job) | {
        "lease_expires_at": format_timestamp(lease.expires_at),
        "cancel_requested": stop.is_requested,
        "cancel_reason": stop.reason,
        "cancel_deadline_seconds": stop.seconds_left,
    }


def build_result(final: dict[str, Any], *extra_fields: str) -> dict[str, Any]:
    """Return the part of a final message that is stored as the result of the job, as JSON.

    Args:
        final: The validated `result` of the message.
        extra_fields: Further fields to store, besides those of every job.
    """
    names = (
        "files",
        "files_omitted",
        "files_omitted_reasons",
        "log_truncated",
        "caches",
        OUTPUT_MEMBER,
        *OUTCOME_FIELDS,
        *extra_fields,
    )
    result = {name: final[name] for name in names if name in final}
    if "steps" in final:
        result["steps"] = [
            step | {name: format_timestamp(step[name]) for name in ("started_at", "finished_at")}
            for step in final["steps"]
        ]
    return result
