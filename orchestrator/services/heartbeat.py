"""Messages of a worker about a job that it has leased: acknowledge, heartbeat, report, release.

Each one locks the job, reads the lease after the wait, and counts only while the lease is valid. The messages that end
a job are in `finish`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from leases.errors import StaleLease
from leases.fencing import LockedLease, lock_lease, require_present_session, require_valid_lease
from leases.models import Lease
from leases.states import LeaseState
from orchestrator.core.principals import actor_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import metering, transitions
from orchestrator.services.expiry import end_if_timed_out
from orchestrator.services.job_end import digest_of, lock_for_final
from runtime_jobs.errors import InvalidTransition
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import RUNNING_STATES, FailureReason, JobState
from workers.models import Worker

UNEXECUTED = (JobState.LEASED, JobState.STARTING, JobState.CHECKING_OUT)
MAX_RELEASES = 10
MAX_EXCLUDED_WORKERS = 3
# A heartbeat that would move the expiry by less than this is answered and not written.
MIN_EXTENSION = timedelta(seconds=1)


@dataclass(frozen=True)
class HeartbeatUpdate:
    """The content of a heartbeat.

    Attributes:
        phase: The phase of the job, or None if it stays.
        reached: A phase that the job is in at least, for callers that do not report each phase.
        progress: A JSON object that replaces the stored progress, or None.
    """

    phase: str | None = None
    reached: str | None = None
    progress: dict[str, Any] | None = None


@dataclass(frozen=True)
class HeartbeatResult:
    """The job and the lease after a heartbeat, and the time of the database."""

    job: Job
    lease: Lease
    now: datetime


@operation(optimistic=True)
def acknowledge(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    session: str | None = None,
    runner: str | None = None,
    now: datetime | None = None,
) -> Job:
    """Acknowledge a granted lease: it becomes active, and the job starts. A repetition changes nothing.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        session: The ULID of the worker's process, or None.
        runner: The name of the process that executes the job, or None.

    Raises:
        StaleLease: The lease is unknown, has ended or expired, or belongs to another process.
    """
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now, versions=uow.versions)
    is_started = validate_and_acknowledge(uow, locked, worker, session, runner)
    return save_acknowledged(uow, locked, is_started=is_started)


def renew(
    *,
    lease_ulid: str,
    worker: Worker,
    phase: str | None = None,
    reached: str | None = None,
    progress: dict[str, Any] | None = None,
    session: str | None = None,
    runner: str | None = None,
    now: datetime | None = None,
) -> HeartbeatResult:
    """Extend the lease by its TTL from now, and store phase and progress. A lease never gets shorter.

    An event is recorded only if the phase changes. A job whose phase has lasted longer than allowed is ended as
    `time_out` does, and the caller gets the refusal that a heartbeat after `time_out` gets.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        phase: The phase of the job, or None if it stays.
        reached: A phase that the job is in at least, for callers that do not report each phase.
        progress: A JSON object that replaces the stored progress, or None.
        session: The ULID of the worker's process, or None.
        runner: The name of the process that executes the job, or None.

    Raises:
        StaleLease: The lease is unknown, has ended or expired, or belongs to another process; or this heartbeat has
            ended it, because the job is overdue.
        InvalidTransition: The phase precedes the current one.
    """
    update = HeartbeatUpdate(phase, reached, progress)
    renewed = _renew(lease_ulid=lease_ulid, worker=worker, update=update, session=session, runner=runner, now=now)
    if isinstance(renewed, StaleLease):
        raise renewed
    return renewed


@operation(optimistic=True)
def _renew(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    update: HeartbeatUpdate,
    session: str | None,
    runner: str | None,
    now: datetime | None,
) -> HeartbeatResult | StaleLease:
    """Return the refusal of an overdue job instead of raising it: the end of the job must be stored."""
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now, versions=uow.versions)
    is_started = validate_and_acknowledge(uow, locked, worker, session, runner)
    return renew_lease(uow, locked, worker, update, is_started=is_started)


@operation(optimistic=True)
def report(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    phase: str,
    session: str | None = None,
    now: datetime | None = None,
) -> Job:
    """Move the job forward to a phase, and extend the lease. Phases may be skipped.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        phase: The phase of the job. The current phase again only extends the lease.
        session: The ULID of the worker's process, or None.

    Raises:
        StaleLease: The lease is unknown, has ended or expired, or belongs to another process.
        InvalidTransition: The phase precedes the current one.
    """
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now, versions=uow.versions)
    validate_and_acknowledge(uow, locked, worker, session)
    _advance(uow, locked, worker, phase)
    transitions.extend_lease(locked.lease, locked.now)
    return _save(uow, locked)


@operation(optimistic=True)
def release(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    message: str = "",
    unable: bool = False,
    now: datetime | None = None,
) -> Job:
    """Return a job that has not been executed to its queue. The same message again changes nothing.

    The job fails after `MAX_RELEASES` releases, or after `MAX_EXCLUDED_WORKERS` workers were unable to execute it.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        message: A text for people.
        unable: Whether this machine cannot execute the job. The worker is not offered the job again.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Conflict: Another final message ended the lease.
        InvalidTransition: The job executes already.
    """
    digest = digest_of("release", unable=unable)
    locked, is_repeated = lock_for_final(uow, lease_ulid, worker, digest, now)
    if not is_repeated:
        _release(uow, locked, worker, digest, message=message, unable=unable)
    return locked.job


def validate_and_acknowledge(
    uow: UnitOfWork, locked: LockedLease, worker: Worker, session: str | None, runner: str | None = None
) -> bool:
    """Check that the lease counts. Any valid message about a job acknowledges its lease.

    Returns:
        Whether this message is the one that acknowledged the lease.

    Raises:
        StaleLease: The lease has ended or expired, or belongs to another process.
    """
    require_valid_lease(locked)
    require_present_session(locked, session)
    if runner is not None:
        _require_same_runner(locked, runner)
    return transitions.acknowledge(
        uow, locked.job, locked.lease, now=locked.now, actor=actor_of(worker), runner_id=runner
    )


def _require_same_runner(locked: LockedLease, runner: str) -> None:
    """Refuse another process than the one that acknowledged the lease.

    Runners of document 001 name their processes instead of sessions. Of two processes that were started with one
    lease, only the first one counts. Its name is in the event of the start.
    """
    started = JobEvent.objects.of(locked.job.job_ulid).filter(event_type="job.started", fence=locked.lease.fence)
    acknowledged_by = started.values_list("payload_json__runner_id", flat=True).first()
    if acknowledged_by not in {None, runner}:
        raise StaleLease("lease_ended")


def save_acknowledged(uow: UnitOfWork, locked: LockedLease, *, is_started: bool) -> Job:
    """Save the job and its lease if this message acknowledged the lease, and return the job."""
    return _save(uow, locked) if is_started else locked.job


def renew_lease(
    uow: UnitOfWork, locked: LockedLease, worker: Worker, update: HeartbeatUpdate, *, is_started: bool
) -> HeartbeatResult | StaleLease:
    """Extend a valid lease and apply the heartbeat, or end an overdue job.

    Args:
        locked: The lease, which `validate_and_acknowledge` accepted.
        worker: The caller.
        update: The content of the heartbeat.
        is_started: Whether this heartbeat acknowledged the lease.

    Returns:
        The job and its lease. If the job was overdue: the refusal for the worker.

    Raises:
        InvalidTransition: The phase precedes the current one.
    """
    job, lease = locked.job, locked.lease
    if end_if_timed_out(uow, locked) is not None:
        return StaleLease("lease_revoked", job.public_status)
    expires_at, phase = lease.expires_at, update.phase
    if update.reached and _phase_number(job.state) < _phase_number(update.reached):
        phase = update.reached
    transitions.extend_lease(lease, locked.now)
    if phase:
        _advance(uow, locked, worker, phase)
    if update.progress is not None:
        job.progress = update.progress
    has_advanced = phase or is_started
    if has_advanced or update.progress is not None:
        transitions.mark_changed(uow, job, locked.now)
    if has_advanced or lease.expires_at - expires_at >= MIN_EXTENSION:
        uow.change(lease)
    else:
        lease.expires_at = expires_at  # the response contains the stored value
    if job.executing_at is not None and job.executing_at < locked.now:  # the message that begins it bills nothing
        metering.bill(uow, job, until=locked.now, now=locked.now)
    return HeartbeatResult(job, lease, locked.now)


def _phase_number(state: str) -> int:
    return RUNNING_STATES.index(JobState(state))


def _advance(uow: UnitOfWork, locked: LockedLease, worker: Worker, phase: str) -> None:
    if locked.job.state == phase:
        return
    transitions.transition(
        uow,
        locked.job,
        phase,
        kind="job.progress",
        now=locked.now,
        actor=actor_of(worker),
        worker_id=worker.worker_id,
    )


def _save(uow: UnitOfWork, locked: LockedLease) -> Job:
    uow.change(locked.lease)
    return transitions.mark_changed(uow, locked.job, locked.now)


def _release(uow: UnitOfWork, locked: LockedLease, worker: Worker, digest: str, *, message: str, unable: bool) -> None:
    job, now, actor = locked.job, locked.now, actor_of(worker)
    if job.state not in UNEXECUTED and job.cancel_requested_at is None:
        raise InvalidTransition(f"A job that is {job.state} cannot be released: its execution has begun.")
    reason = "unable" if unable else "released"
    transitions.end_lease(uow, locked.lease, LeaseState.RELEASED, reason=reason, now=now, digest=digest)
    details = {"unable": unable, "message": message or None}
    transitions.record_event(uow, job, "lease.released", now=now, actor=actor, worker_id=worker.worker_id, **details)
    job.release_count += 1
    if unable:
        job.excluded_workers = [*job.excluded_workers, worker.worker_id]
    if job.cancel_requested_at is not None:
        transitions.cancel_now(uow, job, now=now, actor=actor, worker_id=worker.worker_id)
    elif len(job.excluded_workers) >= MAX_EXCLUDED_WORKERS:
        failure = FailureReason.SANDBOX_UNAVAILABLE
        transitions.fail_or_cancel(uow, job, failure, message=message, now=now, actor=actor)
    elif job.release_count > MAX_RELEASES:
        failure, text = FailureReason.WORKER_ERROR, f"Workers released the job more than {MAX_RELEASES} times."
        transitions.fail_or_cancel(uow, job, failure, message=text, now=now, actor=actor)
    else:
        transitions.requeue(
            uow, job, kind="job.requeued", now=now, actor=actor, worker_id=worker.worker_id, reason=reason
        )
    transitions.mark_changed(uow, job, now)
