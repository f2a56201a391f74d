"""JSON of the jobs of a project (contract 2.10). The job config is never part of it: it may contain secrets."""

from datetime import datetime
from typing import Any

from leases.models import Lease
from leases.states import LeaseState
from orchestrator.protocols.bencher.specs.wire import spec_document
from orchestrator.protocols.bencher.states import BencherStatus, job_status
from orchestrator.protocols.bencher.wire import optional_timestamp, timestamp
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES, WAITING_STATES, JobState
from workers.models import HardwareSpec

# Statuses of a job whose runner has sent its final message, or will send none.
HAS_RUN = frozenset({BencherStatus.COMPLETED, BencherStatus.PROCESSED, BencherStatus.FAILED, BencherStatus.CANCELED})


def serialize_project_job(job: Job, spec: HardwareSpec, lease: Lease | None) -> dict[str, Any]:
    """Return a job.

    Args:
        job: The job.
        spec: Its hardware spec.
        lease: Its newest lease, with the runner, or None.
    """
    held = None if job.state in WAITING_STATES else lease  # a lease that was given back does not count
    return {
        "uuid": str(uuid_of(job.job_ulid)),
        "job_id": job.job_ulid,
        "status": str(job_status(job)),
        "spec": spec_document(spec),
        "runner": None if held is None else str(held.worker.uuid),
        "claimed": None if held is None else timestamp(held.leased_at),
        "started": optional_timestamp(job.executing_at),
        "completed": optional_timestamp(_completed_at(job, held)),
        "created": timestamp(job.created_at),
        "modified": timestamp(job.updated_at),
    }


def _completed_at(job: Job, lease: Lease | None) -> datetime | None:
    """Return when the runner sent its final message, else when the job ended without one."""
    if job_status(job) not in HAS_RUN:
        return None
    if job.state in LEASED_STATES:  # a cancel is requested
        return job.cancel_requested_at
    if lease is not None and lease.state == LeaseState.COMPLETED and job.state == JobState.SUCCEEDED:
        return lease.completed_at
    return job.finished_at or job.phase_at
