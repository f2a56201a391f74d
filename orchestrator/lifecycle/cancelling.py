"""To cancel a job: at once while it waits, else by asking its holder, who has a deadline."""

from datetime import datetime, timedelta

from orchestrator.lifecycle import moves
from orchestrator.lifecycle.outcome import Outcome
from orchestrator.lifecycle.transaction import verb
from runtime_jobs.errors import AlreadyFinal
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.states import WAITING, CancelReason, JobState


@verb
def cancel(
    *,
    job_ulid: str,
    by: Actor,
    deadline_seconds: float,
    reason: CancelReason = CancelReason.REQUESTED,
    message: str = "",
    now: datetime | None = None,
) -> Outcome:
    """Cancel a waiting job at once; ask the holder of a running one, who has `deadline_seconds` to obey.

    A repeat changes nothing and keeps the first deadline and reason. Raises NotFound, AlreadyFinal."""
    job, at = moves.lock_job(job_ulid, now=now)
    if job.is_final and job.state != JobState.CANCELED:
        raise AlreadyFinal(f"The job is {job.public_status} already.", job_status=job.public_status)
    return cancel_locked(job, at=at, by=by, deadline_seconds=deadline_seconds, reason=reason, message=message)


def cancel_locked(
    job: Job, *, at: datetime, by: Actor, deadline_seconds: float, reason: CancelReason, message: str = ""
) -> Outcome:
    """Cancel a locked job, inside the verb that locked it. Does nothing to one that has ended."""
    if job.is_final:
        return Outcome(job)
    if job.cancel_requested_at is not None:
        return Outcome(job, accepted=True)
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = at, reason, str(by)
    job.cancel_message = message
    if job.state in WAITING:
        moves.cancel_now(job, at=at, by=by, message=message or None)
        return Outcome(moves.store(job, at))
    job.cancel_deadline_at = at + timedelta(seconds=deadline_seconds)
    moves.note(job, "job.cancel_requested", at=at, by=by, reason=str(reason), message=message or None)
    return Outcome(moves.store(job, at), accepted=True)
