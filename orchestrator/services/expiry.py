"""Ends leases and jobs whose time is up: expired leases, ignored cancel requests, phases that last too long.

The scheduler calls each operation for one job. The operation checks the cause again under the job's lock and returns
None if it is gone. So any number of schedulers may run, and each races with the worker by the same rule.
"""

from datetime import datetime, timedelta

from leases.fencing import LockedLease, lock_current_lease
from leases.states import LeaseState
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from runtime_jobs.events import SCHEDULER, Actor
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import FailureReason, JobState

PREPARING_SECONDS = 600  # starting and checking out together
UPLOADING_SECONDS = 900


@operation
def expire(uow: UnitOfWork, *, job_ulid: str, now: datetime | None = None) -> Job | None:
    """End a lease that has expired. A job that was never acknowledged is queued again, another one fails or is lost.

    A job whose time limit has passed, too, may end as `time_out` ends it: see `_end_overdue`.

    Args:
        job_ulid: The job.

    Returns:
        The job, or None if it has no expired lease.
    """
    locked = lock_current_lease(job_ulid=job_ulid, now=now)
    if locked is None or locked.lease.is_live(locked.now):
        return None
    return _end_overdue(uow, locked)


@operation
def time_out(uow: UnitOfWork, *, job_ulid: str, now: datetime | None = None) -> Job | None:
    """Fail a job whose phase has lasted longer than allowed, and revoke its lease.

    Args:
        job_ulid: The job.

    Returns:
        The job, or None if no limit is exceeded.
    """
    locked = lock_current_lease(job_ulid=job_ulid, now=now)
    if locked is None or exceeded_limit(locked.job, locked.now) is None:
        return None
    return _end_overdue(uow, locked)


@operation
def force_cancel(uow: UnitOfWork, *, job_ulid: str, now: datetime | None = None) -> Job | None:
    """Cancel a job whose worker has not stopped it before the deadline of the cancel request.

    Args:
        job_ulid: The job.

    Returns:
        The job, or None if no deadline has passed.
    """
    locked = lock_current_lease(job_ulid=job_ulid, now=now)
    if locked is None or locked.job.cancel_deadline_at is None or locked.job.cancel_deadline_at > locked.now:
        return None
    job, lease, now = locked.job, locked.lease, locked.now
    transitions.end_lease(uow, lease, LeaseState.REVOKED, reason="cancel_deadline", now=now)
    _record_lease_end(uow, locked, actor=SCHEDULER, reason="cancel_deadline")
    transitions.cancel_now(uow, job, now=now, actor=SCHEDULER, worker_id=lease.worker_id, forced=True)
    return transitions.mark_changed(uow, job, now)


def exceeded_limit(job: Job, now: datetime) -> int | None:
    """Return the limit in seconds that the job's phase has exceeded, or None."""
    since, limit = {
        JobState.STARTING: (job.started_at, PREPARING_SECONDS),
        JobState.CHECKING_OUT: (job.started_at, PREPARING_SECONDS),
        JobState.EXECUTING: (job.executing_at, (job.timeout_seconds or 0) + job.timeout_grace_seconds),
        JobState.UPLOADING: (job.phase_at, UPLOADING_SECONDS),
    }.get(JobState(job.state), (None, 0))
    if since is None or now - since <= timedelta(seconds=limit):
        return None
    return limit


def end_lease_externally(
    uow: UnitOfWork,
    locked: LockedLease,
    *,
    actor: Actor,
    active_ends: LeaseState,
    reason: FailureReason,
    message: str,
) -> Job:
    """End an open lease without its worker. A granted lease's job is queued again, an active lease's job fails.

    A job whose type has late results is lost instead of failed: see `transitions.end_without_result`.

    Args:
        locked: The lease.
        actor: The scheduler or an operator.
        active_ends: The final state of an active lease.
        reason: The failure reason of the job of an active lease.
        message: A text for people.
    """
    job, lease, now = locked.job, locked.lease, locked.now
    if lease.state == LeaseState.GRANTED:
        _end_unacknowledged(uow, locked, actor=actor)
    else:
        transitions.end_lease(uow, lease, active_ends, reason=str(reason), now=now)
        _record_lease_end(uow, locked, actor=actor, reason=str(reason))
        transitions.end_without_result(
            uow, job, reason, message=message, now=now, actor=actor, worker_id=lease.worker_id
        )
    return transitions.mark_changed(uow, job, now)


def end_if_expired(uow: UnitOfWork, locked: LockedLease) -> Job | None:
    """End an open lease that has expired, as `expire` does, within another operation.

    Returns:
        The job, or None if the lease is live or has ended.
    """
    if not locked.lease.is_open or locked.lease.is_live(locked.now):
        return None
    return _end_overdue(uow, locked)


def end_if_timed_out(uow: UnitOfWork, locked: LockedLease) -> Job | None:
    """Fail the job of a live lease whose phase has lasted longer than allowed, as `time_out` does.

    Returns:
        The job, or None if no limit is exceeded.
    """
    limit = exceeded_limit(locked.job, locked.now)
    return None if limit is None else _fail_timed_out(uow, locked, limit)


def _end_overdue(uow: UnitOfWork, locked: LockedLease) -> Job:
    """End a lease that has expired, or whose job has exceeded a limit, for the cause that came first.

    Both are due at once if no scheduler ran for a while. Only an expired lease may use an automatic retry.
    """
    limit = exceeded_limit(locked.job, min(locked.now, locked.lease.expires_at))
    if limit is None:
        limit = _limit_reached_in_silence(locked)
    if limit is not None:
        return _fail_timed_out(uow, locked, limit)
    return end_lease_externally(
        uow,
        locked,
        actor=SCHEDULER,
        active_ends=LeaseState.EXPIRED,
        reason=FailureReason.LEASE_EXPIRED,
        message="The worker sent no heartbeat before its lease expired.",
    )


def _limit_reached_in_silence(locked: LockedLease) -> int | None:
    """Return the time limit in seconds that an executing job had reached when its lease expired, or None.

    The grace after the time limit is for the report of the worker, and an expired lease accepts none. Only types that
    neither retry the job of a lost worker nor wait for a late result decide so.
    """
    job, lease = locked.job, locked.lease
    if lease.is_live(locked.now) or job.executing_at is None or job.state != JobState.EXECUTING:
        return None
    limit = job.timeout_seconds or 0
    is_reached = lease.expires_at - job.executing_at >= timedelta(seconds=limit)
    return limit if is_reached and JOB_TYPES[job.job_type].times_out_when_silent else None


def _fail_timed_out(uow: UnitOfWork, locked: LockedLease, limit: int) -> Job:
    job, lease, now = locked.job, locked.lease, locked.now
    transitions.end_lease(uow, lease, LeaseState.REVOKED, reason="timed_out", now=now)
    _record_lease_end(uow, locked, actor=SCHEDULER, reason="timed_out")
    message = f"Still {job.state} after {limit} seconds."
    transitions.fail_or_cancel(
        uow, job, FailureReason.TIMED_OUT, message=message, now=now, actor=SCHEDULER, worker_id=lease.worker_id
    )
    return transitions.mark_changed(uow, job, now)


def _end_unacknowledged(uow: UnitOfWork, locked: LockedLease, *, actor: Actor) -> None:
    job, lease, now = locked.job, locked.lease, locked.now
    reason, worker_id = "not_acknowledged", lease.worker_id
    transitions.end_lease(uow, lease, LeaseState.REVOKED, reason=reason, now=now)
    _record_lease_end(uow, locked, actor=actor, reason=reason)
    if job.cancel_requested_at is not None:
        transitions.cancel_now(uow, job, now=now, actor=actor, worker_id=worker_id)
    elif job.requeue_count >= job.max_requeues:
        failure, message = FailureReason.NEVER_ACKNOWLEDGED, "No worker acknowledged the lease."
        transitions.end_without_result(uow, job, failure, message=message, now=now, actor=actor, worker_id=worker_id)
    else:
        job.requeue_count += 1
        transitions.requeue(uow, job, kind="job.requeued", now=now, actor=actor, worker_id=worker_id, reason=reason)


def _record_lease_end(uow: UnitOfWork, locked: LockedLease, *, actor: Actor, reason: str) -> None:
    lease = locked.lease
    kind = "lease.expired" if lease.state == LeaseState.EXPIRED else "lease.revoked"
    transitions.record_event(
        uow, locked.job, kind, now=locked.now, actor=actor, worker_id=lease.worker_id, reason=reason
    )
