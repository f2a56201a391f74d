"""What time causes, one job a transaction: dead leases, overdue cancels, phases that last too long.

Each looks again under the job's lock and does nothing (returns None) where the cause is gone: any number of clocks may
run, and each races with the holder by the same rule."""

from datetime import datetime, timedelta

from leases.fencing import LockedLease, lock_current_lease
from leases.states import LeaseState
from orchestrator.services import transitions
from orchestrator.services.unit_of_work.operation import operation
from runtime_jobs.events import SCHEDULER, Actor
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason, JobState

TIMEOUT_GRACE_SECONDS = 60  # a worker stops its command itself; the server waits this much longer for it to say so
PREPARING_SECONDS = 600  # starting and checking out, together
UPLOADING_SECONDS = 900


@operation
def expire(*, job_ulid: str, now: datetime | None = None) -> Job | None:
    """End a lease whose time is up: never acknowledged, back to the queue; silent while running, failed."""
    holding = lock_current_lease(job_ulid=job_ulid, now=now)
    if holding is None or holding.lease.is_live(holding.at):
        return None
    return _end_overdue(holding)


def _end_overdue(holding: LockedLease) -> Job:
    """End a lease that has expired, or whose job has passed a time limit: for the cause that came first. Both are due
    at once where no scheduler ran for a while, and only a lease that expired may cost an automatic retry."""
    lease, at = holding.lease, holding.at
    if (limit := exceeded_limit(holding.job, min(at, lease.expires_at))) is not None:
        return _fail_timed_out(holding, limit)
    return end_lease_externally(
        holding,
        actor=SCHEDULER,
        active_ends=LeaseState.EXPIRED,
        reason=FailureReason.LEASE_EXPIRED,
        message="The worker fell silent.",
    )


def end_lease_externally(
    holding: LockedLease, *, actor: Actor, active_ends: LeaseState, reason: FailureReason, message: str
) -> Job:
    """End an open lease from outside. The job of a granted one waits again, that of an active one fails."""
    job, lease, at = holding.job, holding.lease, holding.at
    if lease.state == LeaseState.GRANTED:
        _never_started(holding, actor=actor)
    else:
        transitions.end_lease(lease, active_ends, reason=str(reason), at=at)
        _lease_event(holding, actor=actor, reason=str(reason))
        transitions.fail_or_cancel(job, reason, message=message, at=at, actor=actor, worker_id=lease.worker_id)
    return transitions.mark_dirty(job, at)


def _never_started(holding: LockedLease, *, actor: Actor) -> None:
    job, lease, at = holding.job, holding.lease, holding.at
    transitions.end_lease(lease, LeaseState.REVOKED, reason="not_acknowledged", at=at)
    _lease_event(holding, actor=actor, reason="not_acknowledged")
    if job.cancel_requested_at is not None:
        transitions.cancel_now(job, at=at, actor=actor, worker_id=lease.worker_id)
    elif job.requeue_count >= job.max_requeues:
        transitions.fail_or_cancel(
            job,
            FailureReason.NEVER_ACKNOWLEDGED,
            message="No worker took it up.",
            at=at,
            actor=actor,
            worker_id=lease.worker_id,
        )
    else:
        job.requeue_count += 1
        transitions.requeue(
            job, kind="job.requeued", at=at, actor=actor, worker_id=lease.worker_id, reason="not_acknowledged"
        )


def _lease_event(holding: LockedLease, *, actor: Actor, reason: str) -> None:
    kind = "lease.expired" if holding.lease.state == LeaseState.EXPIRED else "lease.revoked"
    transitions.record_event(
        holding.job, kind, at=holding.at, actor=actor, worker_id=holding.lease.worker_id, reason=reason
    )


@operation
def force_cancel(*, job_ulid: str, now: datetime | None = None) -> Job | None:
    """End a job as canceled whose holder did not obey in time."""
    holding = lock_current_lease(job_ulid=job_ulid, now=now)
    if holding is None or holding.job.cancel_deadline_at is None or holding.job.cancel_deadline_at > holding.at:
        return None
    job, lease, at = holding.job, holding.lease, holding.at
    transitions.end_lease(lease, LeaseState.REVOKED, reason="cancel_deadline", at=at)
    _lease_event(holding, actor=SCHEDULER, reason="cancel_deadline")
    transitions.cancel_now(job, at=at, actor=SCHEDULER, worker_id=lease.worker_id, forced=True)
    return transitions.mark_dirty(job, at)


@operation
def time_out(*, job_ulid: str, now: datetime | None = None) -> Job | None:
    """Fail a job that a phase of has lasted longer than the server allows, and revoke its lease."""
    holding = lock_current_lease(job_ulid=job_ulid, now=now)
    if holding is None or exceeded_limit(holding.job, holding.at) is None:
        return None
    return _end_overdue(holding)


def _fail_timed_out(holding: LockedLease, limit: int) -> Job:
    job, lease, at = holding.job, holding.lease, holding.at
    transitions.end_lease(lease, LeaseState.REVOKED, reason="timed_out", at=at)
    _lease_event(holding, actor=SCHEDULER, reason="timed_out")
    message = f"Still {job.state} after {limit} seconds."
    transitions.fail_or_cancel(
        job, FailureReason.TIMED_OUT, message=message, at=at, actor=SCHEDULER, worker_id=lease.worker_id
    )
    return transitions.mark_dirty(job, at)


def exceeded_limit(job: Job, at: datetime) -> int | None:
    """The limit in seconds that the job's phase has passed, or None."""
    since, limit = {
        JobState.STARTING: (job.started_at, PREPARING_SECONDS),
        JobState.CHECKING_OUT: (job.started_at, PREPARING_SECONDS),
        JobState.EXECUTING: (job.executing_at, (job.timeout_seconds or 0) + TIMEOUT_GRACE_SECONDS),
        JobState.UPLOADING: (job.phase_at, UPLOADING_SECONDS),
    }.get(JobState(job.state), (None, 0))
    if since is None or at - since <= timedelta(seconds=limit):
        return None
    return limit
