"""What a worker may do to a job it holds: acknowledge, renew, report, complete, fail, release, acknowledge a cancel.

Each locks the job, reads the lease after the wait, and speaks only while the lease does. A repeated final message is
answered as the first time, even after the lease's end."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from leases.fencing import Holding, lock_holding, require_live
from leases.models import Lease
from leases.states import LeaseState
from orchestrator.lifecycle import moves
from orchestrator.lifecycle.transaction import verb
from runtime_jobs.errors import CancelNotRequested, Conflict, IllegalMove, Invalid
from runtime_jobs.events import Actor
from runtime_jobs.models import Job, UnsentRun
from runtime_jobs.states import FailureReason, JobState
from workers.models import Worker

UNEXECUTED = (JobState.LEASED, JobState.STARTING, JobState.CHECKING_OUT)
MAX_RELEASES = 10
MAX_EXCLUDED = 3
# A renewal that would move the expiry by less than this is answered, not written.
COALESCE = timedelta(seconds=1)


@dataclass(frozen=True)
class Renewed:
    """The answer to a heartbeat."""

    job: Job
    lease: Lease
    at: datetime


def _actor(worker: Worker) -> Actor:
    return Actor("worker", worker.worker_id)


def _speak(lease_ulid: str, worker: Worker, session: str | None, now: datetime | None) -> Holding:
    """Lock, check, and take any word about the job as its acknowledgement."""
    holding = lock_holding(lease_ulid=lease_ulid, worker=worker, now=now)
    require_live(holding, session=session)
    moves.acknowledge(holding.job, holding.lease, at=holding.at, by=_actor(worker))
    return holding


def _kept(holding: Holding) -> Job:
    moves.store_lease(holding.lease)
    return moves.store(holding.job, holding.at)


@verb
def acknowledge(*, lease_ulid: str, worker: Worker, session: str | None = None, now: datetime | None = None) -> Job:
    """Take the granted lease up. Again: nothing changes. Raises StaleLease."""
    return _kept(_speak(lease_ulid, worker, session, now))


@verb
def renew(
    *,
    lease_ulid: str,
    worker: Worker,
    phase: str | None = None,
    progress: dict[str, Any] | None = None,
    session: str | None = None,
    now: datetime | None = None,
) -> Renewed:
    """Extend the lease by its TTL from now, never shorten it; keep the progress. No event, unless the phase changes.

    Raises StaleLease, IllegalMove (a phase that runs backwards)."""
    holding = _speak(lease_ulid, worker, session, now)
    before = holding.lease.expires_at
    moves.extend(holding.lease, holding.at)
    if phase:
        _advance(holding, worker, phase)
    if progress is not None:
        holding.job.progress = progress
    if phase or progress is not None or holding.job.state == JobState.STARTING:
        moves.store(holding.job, holding.at)
    if holding.lease.expires_at - before >= COALESCE or phase or holding.lease.acknowledged_at == holding.at:
        moves.store_lease(holding.lease)
    return Renewed(holding.job, holding.lease, holding.at)


@verb
def report(
    *, lease_ulid: str, worker: Worker, phase: str, session: str | None = None, now: datetime | None = None
) -> Job:
    """Move forward through the phases; skipping is allowed, the same phase again changes nothing but the expiry.

    Raises StaleLease, IllegalMove."""
    holding = _speak(lease_ulid, worker, session, now)
    _advance(holding, worker, phase)
    moves.extend(holding.lease, holding.at)
    return _kept(holding)


def _advance(holding: Holding, worker: Worker, phase: str) -> None:
    if holding.job.state == phase:
        return
    moves.move(holding.job, phase, kind="job.progress", at=holding.at, by=_actor(worker), worker_id=worker.worker_id)


def _digest(verb_name: str, **facts: Any) -> str:
    """What makes two final messages the same: not texts, not the worker's times."""
    return hashlib.sha256(json.dumps([verb_name, facts], sort_keys=True).encode()).hexdigest()


def _final(lease_ulid: str, worker: Worker, digest: str, now: datetime | None) -> tuple[Holding, bool]:
    """Lock for a final message and say whether it was told before. Raises StaleLease, Conflict."""
    holding = lock_holding(lease_ulid=lease_ulid, worker=worker, now=now)
    told = holding.lease.final_digest
    if told is not None:
        if told == digest:
            return holding, True
        raise Conflict("This lease ended with another message.", job_status=holding.job.public_status)
    require_live(holding)
    return holding, False


def _implied(holding: Holding, worker: Worker) -> None:
    """A final message says that the lease was taken up, too."""
    moves.acknowledge(holding.job, holding.lease, at=holding.at, by=_actor(worker))


@verb
def complete(
    *,
    lease_ulid: str,
    worker: Worker,
    ingest_run_id: str | None = None,
    exit_code: int | None = None,
    result: dict[str, Any] | None = None,
    now: datetime | None = None,
) -> Job:
    """End the job in success: `uploaded`, with the run that ingest acknowledged.

    With a cancel requested it succeeds only before the deadline and by the job's policy, else it ends canceled.
    The same message again: the same answer. Raises StaleLease, Conflict, and Invalid for a run where the job's policy
    wants none, or none where it wants one."""
    digest = _digest("complete", run=ingest_run_id, exit_code=exit_code)
    holding, told = _final(lease_ulid, worker, digest, now)
    job, at = holding.job, holding.at
    if told:
        return job
    _require_right_result(job, ingest_run_id)
    _implied(holding, worker)
    job.exit_code = exit_code
    if job.cancel_requested_at is not None and not _beats_cancel(job, at):
        return _acknowledge_cancel(holding, worker, digest, unused_run=ingest_run_id)
    if ingest_run_id and Job.objects.filter(ingest_run_id=ingest_run_id).exists():
        raise Conflict("Another job has this run.")
    job.ingest_run_id, job.result = ingest_run_id, result
    moves.move(
        job,
        JobState.SUCCEEDED,
        kind="job.completed",
        at=at,
        by=_actor(worker),
        worker_id=worker.worker_id,
        ingest_run_id=ingest_run_id,
        exit_code=exit_code,
    )
    moves.close(holding.lease, LeaseState.COMPLETED, reason="completed", at=at, digest=digest)
    return moves.store(job, at)


def _require_right_result(job: Job, ingest_run_id: str | None) -> None:
    if job.needs_ingest and ingest_run_id is None:
        raise Invalid({"ingest_run_id": ["A job of this type succeeds only with the run that ingest acknowledged."]})
    if ingest_run_id is not None and not job.needs_ingest:
        raise Invalid({"ingest_run_id": ["A job of this type has no run."]})


def _beats_cancel(job: Job, at: datetime) -> bool:
    in_time = job.cancel_deadline_at is None or at < job.cancel_deadline_at
    return job.complete_beats_cancel and in_time


@verb
def fail(
    *,
    lease_ulid: str,
    worker: Worker,
    reason: FailureReason,
    message: str = "",
    exit_code: int | None = None,
    result: dict[str, Any] | None = None,
    unsent_run: dict[str, Any] | None = None,
    now: datetime | None = None,
) -> Job:
    """End the job in failure, perhaps with an automatic retry (`worker_shutdown` only). `result`: what it came to.

    `unsent_run` is the payload of a good execution whose upload failed: it is kept for an operator.
    The same message again: the same answer. Raises StaleLease, Conflict."""
    digest = _digest("fail", reason=str(reason), exit_code=exit_code)
    holding, told = _final(lease_ulid, worker, digest, now)
    job, at = holding.job, holding.at
    if told:
        return job
    _implied(holding, worker)
    job.result = result
    if unsent_run is not None:
        UnsentRun.objects.create(job=job, payload=unsent_run, created_at=at)
    moves.close(holding.lease, LeaseState.COMPLETED, reason="failed", at=at, digest=digest)
    moves.fail_or_cancel(
        job, reason, message=message, at=at, by=_actor(worker), worker_id=worker.worker_id, exit_code=exit_code
    )
    return moves.store(job, at)


@verb
def acknowledge_cancel(*, lease_ulid: str, worker: Worker, message: str = "", now: datetime | None = None) -> Job:
    """End a job as canceled, as was asked. Raises StaleLease, Conflict, CancelNotRequested."""
    digest = _digest("acknowledge_cancel")
    holding, told = _final(lease_ulid, worker, digest, now)
    if told:
        return holding.job
    if holding.job.cancel_requested_at is None:
        raise CancelNotRequested("Nobody has asked to cancel this job.")
    _implied(holding, worker)
    return _acknowledge_cancel(holding, worker, digest, message=message or None)


def _acknowledge_cancel(holding: Holding, worker: Worker, digest: str, **payload: Any) -> Job:
    moves.close(holding.lease, LeaseState.CANCELED, reason="canceled", at=holding.at, digest=digest)
    moves.cancel_now(holding.job, at=holding.at, by=_actor(worker), worker_id=worker.worker_id, **payload)
    return moves.store(holding.job, holding.at)


@verb
def release(
    *, lease_ulid: str, worker: Worker, message: str = "", unable: bool = False, now: datetime | None = None
) -> Job:
    """Give the job back unexecuted. `unable`: this machine turned out too weak, so it is not offered the job again.

    After three such workers, or ten releases, the job fails. Raises StaleLease, Conflict, IllegalMove (it runs)."""
    digest = _digest("release", unable=unable)
    holding, told = _final(lease_ulid, worker, digest, now)
    if not told:
        _give_back(holding, worker, digest, message=message, unable=unable)
    return holding.job


def _give_back(holding: Holding, worker: Worker, digest: str, *, message: str, unable: bool) -> None:
    job, at, by = holding.job, holding.at, _actor(worker)
    if job.state not in UNEXECUTED and job.cancel_requested_at is None:
        raise IllegalMove(f"A job that is {job.state} cannot be given back.")
    moves.close(holding.lease, LeaseState.RELEASED, reason="unable" if unable else "released", at=at, digest=digest)
    moves.note(job, "lease.released", at=at, by=by, worker_id=worker.worker_id, unable=unable, message=message or None)
    job.release_count += 1
    if unable:
        job.excluded_workers = [*job.excluded_workers, worker.worker_id]
    if job.cancel_requested_at is not None:
        moves.cancel_now(job, at=at, by=by, worker_id=worker.worker_id)
    elif len(job.excluded_workers) >= MAX_EXCLUDED:
        moves.fail_or_cancel(job, FailureReason.SANDBOX_UNAVAILABLE, message=message, at=at, by=by)
    elif job.release_count > MAX_RELEASES:
        moves.fail_or_cancel(job, FailureReason.WORKER_ERROR, message="Given back too often.", at=at, by=by)
    else:
        moves.requeue(
            job,
            kind="job.requeued",
            at=at,
            by=by,
            worker_id=worker.worker_id,
            reason="unable" if unable else "released",
        )
    moves.store(job, at)
