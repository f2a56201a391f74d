"""The answer of a heartbeat to the question whether the worker has to stop."""

from datetime import datetime, timedelta
from typing import NamedTuple

from runtime_jobs.models import Job
from runtime_jobs.specs.payload import PAYLOAD_TYPES
from runtime_jobs.states import CancelReason, JobState


class StopRequest(NamedTuple):
    """Whether the worker of a job has to stop, why, and how many seconds it has for that."""

    is_requested: bool
    reason: str | None
    seconds_left: float | None


def is_at_time_limit(job: Job, now: datetime) -> bool:
    """Return whether a job has reached its time limit and its worker must be asked to stop.

    Workers of payload types are programs of tenants. Ours, and runners, stop their commands by their own clocks.
    """
    if job.job_type not in PAYLOAD_TYPES or job.state != JobState.EXECUTING or job.executing_at is None:
        return False
    return now - job.executing_at >= timedelta(seconds=job.timeout_seconds or 0)


def stop_request(job: Job, now: datetime) -> StopRequest:
    """Return what a heartbeat at this time is answered: a requested cancel, or the time limit."""
    if job.cancel_requested_at is not None or not is_at_time_limit(job, now):
        return StopRequest(job.cancel_requested_at is not None, job.cancel_reason, job.cancel_seconds_left(now))
    begun = job.executing_at or now
    end = begun + timedelta(seconds=(job.timeout_seconds or 0) + job.timeout_grace_seconds)
    return StopRequest(
        is_requested=True, reason=CancelReason.TIMEOUT, seconds_left=max(0.0, (end - now).total_seconds())
    )
