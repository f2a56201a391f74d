"""To cancel a job: at once while it waits, else by asking its holder, who has a deadline."""

from datetime import datetime, timedelta

from orchestrator.services import transitions
from orchestrator.services.outcome import OperationResult
from orchestrator.services.unit_of_work.operation import operation
from runtime_jobs.errors import AlreadyFinal
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.states import WAITING_STATES, CancelReason, JobState


@operation
def cancel(
    *,
    job_ulid: str,
    actor: Actor,
    deadline_seconds: float,
    reason: CancelReason = CancelReason.REQUESTED,
    message: str = "",
    now: datetime | None = None,
) -> OperationResult:
    """Cancel a waiting job at once; ask the holder of a running one, who has `deadline_seconds` to obey.

    A repeat changes nothing and keeps the first deadline and reason. Raises NotFound, AlreadyFinal."""
    job, at = transitions.lock_job(job_ulid, now=now)
    if job.is_final and job.state != JobState.CANCELED:
        raise AlreadyFinal(f"The job is {job.public_status} already.", job_status=job.public_status)
    return cancel_locked(job, at=at, actor=actor, deadline_seconds=deadline_seconds, reason=reason, message=message)


def cancel_locked(
    job: Job, *, at: datetime, actor: Actor, deadline_seconds: float, reason: CancelReason, message: str = ""
) -> OperationResult:
    """Cancel a locked job, inside the verb that locked it. Does nothing to one that has ended."""
    if job.is_final:
        return OperationResult(job)
    if job.cancel_requested_at is not None:
        return OperationResult(job, accepted=True)
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = at, reason, str(actor)
    job.cancel_message = message
    if job.state in WAITING_STATES:
        transitions.cancel_now(job, at=at, actor=actor, message=message or None)
        return OperationResult(transitions.mark_dirty(job, at))
    job.cancel_deadline_at = at + timedelta(seconds=deadline_seconds)
    transitions.record_event(
        job, "job.cancel_requested", at=at, actor=actor, reason=str(reason), message=message or None
    )
    return OperationResult(transitions.mark_dirty(job, at), accepted=True)
