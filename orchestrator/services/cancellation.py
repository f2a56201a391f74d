"""Cancels a job: a waiting or lost job at once, a leased job by a request to its worker with a deadline."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from leases.fencing import LockedLease
from orchestrator.core.principals import actor_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.job_end import (
    ArtifactRef,
    acknowledge_lease,
    digest_of,
    end_as_canceled,
    lock_for_final,
    save_artifacts,
)
from orchestrator.services.signals import cancel_requested
from orchestrator.services.transitions import OperationResult
from runtime_jobs.errors import AlreadyFinal
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.states import WAITING_STATES, CancelReason, JobState
from workers.models import Worker


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
        job_ulid: The job.
        actor: The client or operator.
        deadline_seconds: Seconds until the scheduler cancels a leased job whose worker has not stopped it.
        reason: The kind of the request.
        message: A text for people.

    Raises:
        NotFound: The job does not exist.
        AlreadyFinal: The job ended otherwise, or its result has arrived and is being read.
    """
    job, now = transitions.lock_job(job_ulid, now=now)
    if job.state == JobState.PROCESSING:
        message = "The job cannot be canceled: its result has arrived and is being read."
        raise AlreadyFinal(message, job_status=job.public_status)
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
    """Cancel a locked job within another operation. A job that has ended or whose result is read stays as it is."""
    if job.is_final or job.state == JobState.PROCESSING:
        return OperationResult(job)
    if job.cancel_requested_at is not None:
        return OperationResult(job, accepted=True)
    _request(job, now=now, actor=actor, reason=reason, message=message)
    if job.state in WAITING_STATES or job.state == JobState.LOST:  # no worker has to stop
        transitions.cancel_now(uow, job, now=now, actor=actor, message=message or None)
        return OperationResult(transitions.mark_changed(uow, job, now))
    job.cancel_deadline_at = now + timedelta(seconds=deadline_seconds)
    request = {"reason": str(reason), "message": message or None}
    transitions.record_event(uow, job, "job.cancel_requested", now=now, actor=actor, **request)
    cancel_requested.send(Job, uow=uow, job=job)
    return OperationResult(transitions.mark_changed(uow, job, now), accepted=True)


@operation(optimistic=True)
def stop_by_worker(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    reason: CancelReason = CancelReason.REQUESTED,
    message: str = "",
    artifacts: Sequence[ArtifactRef] = (),
    runner: str | None = None,
    now: datetime | None = None,
) -> Job:
    """End a job as canceled because its worker has stopped it, with or without a request to do so.

    Without a request, the worker's own message is recorded as the request. The same message as that of
    `acknowledge_cancel` is a repetition.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        reason: The kind of the request, if there was none.
        message: A text for people.
        artifacts: References to artifacts.
        runner: The name of the process that executed the job, or None.

    Returns:
        The job. The same message again returns it unchanged.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Conflict: Another final message ended the lease.
    """
    digest = digest_of("acknowledge_cancel", artifacts)
    locked, is_repeated = lock_for_final(uow, lease_ulid, worker, digest, now)
    if is_repeated:
        return locked.job
    acknowledge_lease(uow, locked, worker, runner)
    save_artifacts(uow, locked.job, artifacts, now=locked.now)
    return end_by_worker(uow, locked, worker, digest, reason=reason, message=message)


def end_by_worker(
    uow: UnitOfWork, locked: LockedLease, worker: Worker, digest: str, *, reason: CancelReason, message: str = ""
) -> Job:
    """End a job as canceled by the final message of its worker, within another operation.

    Args:
        locked: A valid lease. This message acknowledges it.
        worker: The worker.
        digest: The digest of the message.
        reason: The kind of the request, if there was none.
        message: A text for people.
    """
    job, actor = locked.job, actor_of(worker)
    acknowledge_lease(uow, locked, worker, None)
    if job.cancel_requested_at is None:
        _request(job, now=locked.now, actor=actor, reason=reason, message=message)
        request = {"reason": str(reason), "message": message or None}
        transitions.record_event(uow, job, "job.cancel_requested", now=locked.now, actor=actor, **request)
    return end_as_canceled(uow, locked, worker, digest, message=message or None)


def _request(job: Job, *, now: datetime, actor: Actor, reason: CancelReason, message: str) -> None:
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = now, reason, str(actor)
    job.cancel_message = message
