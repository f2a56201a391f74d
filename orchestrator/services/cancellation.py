"""Cancels a job: a waiting job at once, a leased job by a request to its worker with a deadline."""

from datetime import datetime, timedelta

from orchestrator.services import transitions
from orchestrator.services.transitions import OperationResult
from orchestrator.services.unit_of_work import UnitOfWork, operation
from runtime_jobs.errors import AlreadyFinal
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.states import WAITING_STATES, CancelReason, JobState


@operation
def cancel(
    uow: UnitOfWork,
    *,
    job_ulid: str,
    actor: Actor,
    deadline_seconds: float,
    reason: CancelReason = CancelReason.REQUESTED,
    message: str = "",
    now: datetime | None = None,
) -> OperationResult:
    """Cancel a job. A repeated request changes nothing and keeps the first deadline and reason.

    Args:
        uow: The unit of work, which `operation` passes.
        job_ulid: The job.
        actor: The client or operator.
        deadline_seconds: Seconds until the scheduler cancels a leased job whose worker has not stopped it.
        reason: The kind of the request.
        message: A text for people.
        now: The time of the request; by default the time of the database.

    Raises:
        NotFound: The job does not exist.
        AlreadyFinal: The job ended otherwise.
    """
    job, now = transitions.lock_job(job_ulid, now=now)
    if job.is_final and job.state != JobState.CANCELED:
        raise AlreadyFinal(f"The job has already ended: it is {job.public_status}.", job_status=job.public_status)
    return cancel_locked(
        uow, job, now=now, actor=actor, deadline_seconds=deadline_seconds, reason=reason, message=message
    )


def cancel_locked(
    uow: UnitOfWork,
    job: Job,
    *,
    now: datetime,
    actor: Actor,
    deadline_seconds: float,
    reason: CancelReason,
    message: str = "",
) -> OperationResult:
    """Cancel a locked job within another operation. A job that has ended stays as it is."""
    if job.is_final:
        return OperationResult(job)
    if job.cancel_requested_at is not None:
        return OperationResult(job, accepted=True)
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = now, reason, str(actor)
    job.cancel_message = message
    if job.state in WAITING_STATES:
        transitions.cancel_now(uow, job, now=now, actor=actor, message=message or None)
        return OperationResult(transitions.mark_changed(uow, job, now))
    job.cancel_deadline_at = now + timedelta(seconds=deadline_seconds)
    request = {"reason": str(reason), "message": message or None}
    transitions.record_event(uow, job, "job.cancel_requested", now=now, actor=actor, **request)
    return OperationResult(transitions.mark_changed(uow, job, now), accepted=True)
