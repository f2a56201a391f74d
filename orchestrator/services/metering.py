"""Bills the minutes that jobs execute: a record in the ledger and the watermark of the job, in one transaction.

Whoever charges an organization reads the ledger. This server calls no payment provider.
"""

from datetime import datetime

from orchestrator.core.unit_of_work import UnitOfWork
from runtime_jobs.models import Job, UsageRecord

MAX_MINUTES = 2**31 - 1


def billed_minutes(elapsed_seconds: float) -> int:
    """Return the minutes of an execution: each minute that has begun counts, and at least one.

    Args:
        elapsed_seconds: The duration. A part of a second does not count, and a negative duration counts as none.
    """
    seconds = min(max(0, int(elapsed_seconds)), MAX_MINUTES * 60)
    return max(1, -(-seconds // 60))


def bill(uow: UnitOfWork, job: Job, *, until: datetime, now: datetime) -> int:
    """Bill the minutes of a job's execution that are not billed yet, and raise the watermark of the job.

    Call this within the operation that learns of the time: a heartbeat, or the end of the lease. A repetition bills
    nothing, because the watermark has moved. The caller writes the job.

    Args:
        job: A locked job. Jobs of types that are not metered, and jobs that do not execute, are left alone.
        until: The end of the execution so far.
        now: Timestamp of the record.

    Returns:
        The number of new minutes.
    """
    if not job.is_metered or job.executing_at is None:
        return 0
    minute = billed_minutes((until - job.executing_at).total_seconds())
    billed = job.last_billed_minute or 0
    if minute <= billed:
        return 0
    uow.extra_rows.append(
        UsageRecord(
            job_ulid=job.job_ulid,
            org_slug=job.org_slug,
            project_slug=job.project_slug,
            job_type=job.job_type,
            minute=minute,
            minutes=minute - billed,
            started_at=job.executing_at,
            billed_until=until,
            recorded_at=now,
        )
    )
    job.last_billed_minute = minute
    uow.change(job)
    return minute - billed
