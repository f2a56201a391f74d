"""Ends jobs that settle: lost jobs, which have no lease and no result, and jobs whose result has arrived.

A job is lost if its lease ended without a result and its type has late results. A late result leads to `processing`,
the end of the late window to `failed`, a cancel to `canceled`. A job in `processing` ends when its result was read.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from leases.fencing import lock_newest_lease
from leases.models import Lease
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.job_end import (
    READABLE,
    ArtifactRef,
    CompleteMessage,
    ReadResult,
    apply_success,
    end_processing,
    is_duplicate,
    save_diagnosis,
)
from runtime_jobs.events import SCHEDULER, Actor
from runtime_jobs.models import Artifact, Job
from runtime_jobs.states import FailureReason, JobState
from workers.models import Worker


@operation
def complete_late(
    uow: UnitOfWork,
    *,
    job_ulid: str,
    worker: Worker,
    exit_code: int | None = None,
    result: dict[str, Any] | None = None,
    artifacts: Sequence[ArtifactRef] = (),
    runner: str | None = None,
    now: datetime | None = None,
) -> Job:
    """Accept a result by the job's id: that of a lost job, or of an open lease as `complete` does.

    For protocols whose workers know jobs and no leases, and send a result again after a broken connection. A result
    after the late window does not count. It ends the job as `give_up` does, if no scheduler process has done so.

    Args:
        job_ulid: The job.
        worker: The caller. The newest lease of the job must be its own.
        exit_code: The exit code of the command.
        result: The result of the job, a JSON object.
        artifacts: References to artifacts.
        runner: The name of the process that executed the job, or None.

    Returns:
        The job. The same message again returns it unchanged. A job that is final has not taken the result.

    Raises:
        StaleLease: The worker does not hold the newest lease of the job, or that has ended and the job is not lost.
        Conflict: Another final message ended the lease.
        InvalidTransition: The worker has not reported `executing`, and its lease is open.
    """
    message = CompleteMessage(None, exit_code, result, tuple(artifacts), runner)
    locked = lock_newest_lease(job_ulid=job_ulid, worker=worker, now=now)
    if _is_given_up(uow, locked.job, locked.now):
        return locked.job
    if is_duplicate(locked, message.digest, may_be_late=True):
        return locked.job
    return apply_success(uow, locked, worker, message, set())


@operation
def settle(
    uow: UnitOfWork,
    *,
    job_ulid: str,
    read_result: ReadResult = READABLE,
    now: datetime | None = None,
) -> Job | None:
    """End a job whose result was read. A second call changes nothing, so a result may be read twice.

    Args:
        job_ulid: The job.
        read_result: What was read.

    Returns:
        The job, or None if it is not in `processing`. Nothing is stored then.

    Raises:
        NotFound: The job does not exist.
        ValueError: The failure is none of `RESULT_FAILURES`.
    """
    job, now = transitions.lock_job(job_ulid, now=now)
    if job.state != JobState.PROCESSING:
        return None
    end_processing(uow, job, read_result, now=now)
    return transitions.mark_changed(uow, job, now)


@operation
def give_up(uow: UnitOfWork, *, job_ulid: str, now: datetime | None = None) -> Job | None:
    """Fail a lost job whose late window has ended, for the reason that it was lost.

    Args:
        job_ulid: The job.

    Returns:
        The job, or None if it is not lost or its late window is open.
    """
    job, now = transitions.lock_job(job_ulid, now=now)
    return job if _is_given_up(uow, job, now) else None


def _is_given_up(uow: UnitOfWork, job: Job, now: datetime) -> bool:
    """Fail the job if it is lost and its late window has ended, and report whether."""
    if job.state != JobState.LOST or job.late_result_at is None or job.late_result_at > now:
        return False
    reason = fail_lost(uow, job, now=now, actor=SCHEDULER)
    transitions.retry_or_escalate(uow, job, reason, now=now)
    transitions.mark_changed(uow, job, now)
    return True


def fail_lost(uow: UnitOfWork, job: Job, *, now: datetime, actor: Actor) -> FailureReason:
    """Fail a locked, lost job for the reason that it has kept. The caller marks the job as changed.

    Returns:
        The reason.
    """
    reason, message = FailureReason(job.failure_reason or ""), job.failure_message or ""
    lease = Lease.objects.get(job=job, fence=job.fence)
    transitions.fail(uow, job, reason, message=message, now=now, actor=actor, worker_id=lease.worker_id)
    artifacts = Artifact.objects.filter(job=job).values_list("type", "uri")
    save_diagnosis(uow, job, [ArtifactRef(kind, uri) for kind, uri in artifacts], now=now)
    return reason
