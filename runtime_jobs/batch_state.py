"""The state of a batch, computed from its jobs. A batch stores no state of its own that could contradict them."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import TextChoices

from runtime_jobs.states import FINAL_STATES, WAITING_STATES, FailureReason, JobState


class BatchState(TextChoices):
    """The state of a batch."""

    QUEUED = "queued"  # no job has started
    RUNNING = "running"
    CANCEL_REQUESTED = "cancel_requested"  # requested, and not every job has ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"  # all failures were timeouts


BATCH_FINAL = (BatchState.SUCCEEDED, BatchState.FAILED, BatchState.CANCELED, BatchState.TIMED_OUT)


@dataclass(frozen=True)
class JobOutcome:
    """The state of the newest attempt of one job. An optional job never decides the state of the batch."""

    state: str
    failure_reason: str | None = None
    required: bool = True


def aggregate_state(jobs: Iterable[JobOutcome], *, cancel_requested: bool) -> BatchState:
    """Return the state of a batch.

    A batch ends with its last job, so a cancel request still reaches running jobs. Of the ended jobs, a cancel of the
    batch outweighs a failure, a failure outweighs a single canceled job, and other failures outweigh a timeout.

    Args:
        jobs: The newest attempt of each job.
        cancel_requested: The batch itself was canceled.
    """
    outcomes = list(jobs)
    if any(job.state not in FINAL_STATES for job in outcomes):
        return _open(outcomes, cancel_requested=cancel_requested)
    deciding = [job for job in outcomes if job.required] or outcomes
    wrong = [job for job in deciding if job.state != JobState.SUCCEEDED]
    if not wrong:
        return BatchState.SUCCEEDED
    failed = [job for job in wrong if job.state == JobState.FAILED]
    if cancel_requested or not failed:
        return BatchState.CANCELED
    late = all(job.failure_reason == FailureReason.TIMED_OUT for job in failed)
    return BatchState.TIMED_OUT if late else BatchState.FAILED


def _open(outcomes: list[JobOutcome], *, cancel_requested: bool) -> BatchState:
    if cancel_requested:
        return BatchState.CANCEL_REQUESTED
    return BatchState.QUEUED if all(job.state in WAITING_STATES for job in outcomes) else BatchState.RUNNING
