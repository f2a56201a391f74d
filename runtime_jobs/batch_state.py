"""What a batch has come to, read from its jobs. Pure: a batch stores no state of its own that could disagree."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import TextChoices

from runtime_jobs.states import FINAL_STATES, WAITING_STATES, FailureReason, JobState


class BatchState(TextChoices):
    QUEUED = "queued"  # nothing has begun
    RUNNING = "running"
    CANCEL_REQUESTED = "cancel_requested"  # asked for, and not every job has ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"  # all that went wrong were timeouts


BATCH_FINAL = (BatchState.SUCCEEDED, BatchState.FAILED, BatchState.CANCELED, BatchState.TIMED_OUT)


@dataclass(frozen=True)
class JobOutcome:
    """Where the newest attempt of one job stands. An optional job never decides how the batch ends."""

    state: str
    failure_reason: str | None = None
    required: bool = True


def aggregate_state(jobs: Iterable[JobOutcome], *, cancel_requested: bool) -> BatchState:
    """One state for all. A batch has ended when every job has, so that a cancel still reaches those that run; then a
    cancel of the batch outweighs what failed, a failure what somebody canceled alone, and another failure a timeout."""
    standings = list(jobs)
    if any(one.state not in FINAL_STATES for one in standings):
        return _open(standings, cancel_requested=cancel_requested)
    deciding = [one for one in standings if one.required] or standings
    wrong = [one for one in deciding if one.state != JobState.SUCCEEDED]
    if not wrong:
        return BatchState.SUCCEEDED
    failed = [one for one in wrong if one.state == JobState.FAILED]
    if cancel_requested or not failed:
        return BatchState.CANCELED
    late = all(one.failure_reason == FailureReason.TIMED_OUT for one in failed)
    return BatchState.TIMED_OUT if late else BatchState.FAILED


def _open(standings: list[JobOutcome], *, cancel_requested: bool) -> BatchState:
    if cancel_requested:
        return BatchState.CANCEL_REQUESTED
    return BatchState.QUEUED if all(one.state in WAITING_STATES for one in standings) else BatchState.RUNNING
