"""What a worker may say of a job it holds: acknowledge, renew, report, release. How it ends the job is in `finals`.

Each locks the job, reads the lease after the wait, and speaks only while the lease does."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from leases.errors import StaleLease
from leases.fencing import LockedLease, lock_lease, require_present_session, require_valid_lease
from leases.models import Lease
from leases.states import LeaseState
from orchestrator.services import transitions
from orchestrator.services.finish import actor_of, digest_of, lock_for_final
from orchestrator.services.unit_of_work.operation import operation
from runtime_jobs.errors import InvalidTransition
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import RUNNING_STATES, FailureReason, JobState
from workers.models import Worker

UNEXECUTED = (JobState.LEASED, JobState.STARTING, JobState.CHECKING_OUT)
MAX_RELEASES = 10
MAX_EXCLUDED = 3
# A renewal that would move the expiry by less than this is answered, not written.
COALESCE = timedelta(seconds=1)


@dataclass(frozen=True)
class HeartbeatUpdate:
    """What a heartbeat tells; see `renew`."""

    phase: str | None = None
    reached: str | None = None
    progress: dict[str, Any] | None = None


@dataclass(frozen=True)
class HeartbeatResult:
    """The answer to a heartbeat."""

    job: Job
    lease: Lease
    at: datetime


def _lock_and_validate(
    lease_ulid: str, worker: Worker, session: str | None, now: datetime | None, runner: str | None = None
) -> LockedLease:
    """Lock, check, and take any word about the job as its acknowledgement."""
    holding = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    validate_and_acknowledge(holding, worker, session, runner)
    return holding


def validate_and_acknowledge(
    holding: LockedLease, worker: Worker, session: str | None, runner: str | None = None
) -> None:
    """The same of a job that is locked already. Raises StaleLease."""
    require_valid_lease(holding)
    require_present_session(holding, session)
    if runner is not None:
        _require_same_runner(holding, runner)
    transitions.acknowledge(holding.job, holding.lease, at=holding.at, actor=actor_of(worker), runner_id=runner)


def _require_same_runner(holding: LockedLease, runner: str) -> None:
    """As a session does, where processes have names instead (document 001): of two that were started from one lease,
    the one that took it up may speak. Its name is in the trail."""
    taken_up = JobEvent.objects.of(holding.job.job_ulid).filter(event_type="job.started", fence=holding.lease.fence)
    told = taken_up.values_list("payload_json__runner_id", flat=True).first()
    if told not in {None, runner}:
        raise StaleLease("lease_ended")


def _save(holding: LockedLease) -> Job:
    transitions.store_lease(holding.lease)
    return transitions.mark_dirty(holding.job, holding.at)


@operation
def acknowledge(
    *,
    lease_ulid: str,
    worker: Worker,
    session: str | None = None,
    runner: str | None = None,
    now: datetime | None = None,
) -> Job:
    """Take the granted lease up; `runner` is what the process that does calls itself. Again: nothing changes.

    Raises StaleLease."""
    return keep_acknowledged(_lock_and_validate(lease_ulid, worker, session, now, runner))


def keep_acknowledged(holding: LockedLease) -> Job:
    return _save(holding) if holding.lease.acknowledged_at == holding.at else holding.job


@operation
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
    """Extend the lease by its TTL from now, never shorten it; keep the progress. No event, unless the phase changes.

    `reached`: a phase that it is in at least, for callers who do not count them. Raises StaleLease, IllegalMove (a
    `phase` that runs backwards)."""
    return renew_lease(
        _lock_and_validate(lease_ulid, worker, session, now, runner), worker, HeartbeatUpdate(phase, reached, progress)
    )


def renew_lease(holding: LockedLease, worker: Worker, beat: HeartbeatUpdate) -> HeartbeatResult:
    """Renew a lease that has just been heard. Raises IllegalMove."""
    before, phase = holding.lease.expires_at, beat.phase
    if beat.reached and RUNNING_STATES.index(JobState(holding.job.state)) < RUNNING_STATES.index(
        JobState(beat.reached)
    ):
        phase = beat.reached
    transitions.extend_lease(holding.lease, holding.at)
    if phase:
        _advance(holding, worker, phase)
    if beat.progress is not None:
        holding.job.progress = beat.progress
    moved = phase or holding.lease.acknowledged_at == holding.at
    if moved or beat.progress is not None:
        transitions.mark_dirty(holding.job, holding.at)
    if moved or holding.lease.expires_at - before >= COALESCE:
        transitions.store_lease(holding.lease)
    else:
        holding.lease.expires_at = before  # what is answered is what is stored
    return HeartbeatResult(holding.job, holding.lease, holding.at)


@operation
def report(
    *, lease_ulid: str, worker: Worker, phase: str, session: str | None = None, now: datetime | None = None
) -> Job:
    """Move forward through the phases; skipping is allowed, the same phase again changes nothing but the expiry.

    Raises StaleLease, IllegalMove."""
    holding = _lock_and_validate(lease_ulid, worker, session, now)
    _advance(holding, worker, phase)
    transitions.extend_lease(holding.lease, holding.at)
    return _save(holding)


def _advance(holding: LockedLease, worker: Worker, phase: str) -> None:
    if holding.job.state == phase:
        return
    transitions.transition(
        holding.job, phase, kind="job.progress", at=holding.at, actor=actor_of(worker), worker_id=worker.worker_id
    )


@operation
def release(
    *, lease_ulid: str, worker: Worker, message: str = "", unable: bool = False, now: datetime | None = None
) -> Job:
    """Give the job back unexecuted. `unable`: this machine turned out too weak, so it is not offered the job again.

    After three such workers, or ten releases, the job fails. Raises StaleLease, Conflict, IllegalMove (it runs)."""
    digest = digest_of("release", unable=unable)
    holding, told = lock_for_final(lease_ulid, worker, digest, now)
    if not told:
        _release(holding, worker, digest, message=message, unable=unable)
    return holding.job


def _release(holding: LockedLease, worker: Worker, digest: str, *, message: str, unable: bool) -> None:
    job, at, actor = holding.job, holding.at, actor_of(worker)
    if job.state not in UNEXECUTED and job.cancel_requested_at is None:
        raise InvalidTransition(f"A job that is {job.state} cannot be given back.")
    transitions.end_lease(
        holding.lease, LeaseState.RELEASED, reason="unable" if unable else "released", at=at, digest=digest
    )
    transitions.record_event(
        job, "lease.released", at=at, actor=actor, worker_id=worker.worker_id, unable=unable, message=message or None
    )
    job.release_count += 1
    if unable:
        job.excluded_workers = [*job.excluded_workers, worker.worker_id]
    if job.cancel_requested_at is not None:
        transitions.cancel_now(job, at=at, actor=actor, worker_id=worker.worker_id)
    elif len(job.excluded_workers) >= MAX_EXCLUDED:
        transitions.fail_or_cancel(job, FailureReason.SANDBOX_UNAVAILABLE, message=message, at=at, actor=actor)
    elif job.release_count > MAX_RELEASES:
        transitions.fail_or_cancel(job, FailureReason.WORKER_ERROR, message="Given back too often.", at=at, actor=actor)
    else:
        transitions.requeue(
            job,
            kind="job.requeued",
            at=at,
            actor=actor,
            worker_id=worker.worker_id,
            reason="unable" if unable else "released",
        )
    transitions.mark_dirty(job, at)
