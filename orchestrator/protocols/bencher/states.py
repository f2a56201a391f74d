"""Terms of document 002 for the states of a job. Data, and the one function that applies it."""

from enum import StrEnum

from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES, FailureReason, JobState


class BencherStatus(StrEnum):
    """The status of a job as runners and clients of this protocol see it."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"  # the result is stored and not read yet
    PROCESSED = "processed"
    FAILED = "failed"
    CANCELED = "canceled"


JOB_STATUSES: dict[str, BencherStatus] = {
    JobState.BLOCKED: BencherStatus.PENDING,
    JobState.QUEUED: BencherStatus.PENDING,
    JobState.LEASED: BencherStatus.CLAIMED,
    JobState.STARTING: BencherStatus.CLAIMED,
    JobState.CHECKING_OUT: BencherStatus.CLAIMED,
    JobState.EXECUTING: BencherStatus.RUNNING,
    JobState.UPLOADING: BencherStatus.RUNNING,
    "lost": BencherStatus.FAILED,  # a late result still counts
    "processing": BencherStatus.COMPLETED,
    JobState.SUCCEEDED: BencherStatus.PROCESSED,
    JobState.FAILED: BencherStatus.FAILED,
    JobState.CANCELED: BencherStatus.CANCELED,
}


def job_status(job: Job) -> BencherStatus:
    """Return the status of a job in this protocol.

    A requested cancel counts at once, although the slot is free only after the runner has stopped. A job that exceeded
    its time limit is canceled.
    """
    if job.cancel_requested_at is not None and job.state in LEASED_STATES:
        return BencherStatus.CANCELED
    status = JOB_STATUSES[job.state]
    if status is BencherStatus.FAILED and job.failure_reason == FailureReason.TIMED_OUT:
        return BencherStatus.CANCELED
    return status
