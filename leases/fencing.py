"""The fence: who may speak for a job. Every verb of a worker comes through here, and holds the job's lock after it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from django.db.models import QuerySet

from leases.errors import StaleLease
from leases.models import Lease
from leases.states import STALE_REASONS
from runtime_jobs.columns import ClockTimestamp
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import REQUEST
from workers.models import Worker


@dataclass(frozen=True)
class Holding:
    """A job under its lock, the lease as it is after the wait for that lock, and the database's time after both."""

    job: Job
    lease: Lease
    at: datetime


def lock_holding(*, lease_ulid: str, worker: Worker, now: datetime | None = None) -> Holding:
    """Lock the job of this worker's lease. Says nothing yet about whether the lease still counts.

    Raises StaleLease `unknown_lease` for a lease that does not exist or is another worker's."""
    mine = Lease.objects.filter(lease_ulid=lease_ulid, worker_id=worker.worker_id)
    job_ulid = mine.values_list("job_id", flat=True).first()
    if job_ulid is None:
        raise StaleLease("unknown_lease")
    return _after_the_wait(Job.objects.locked().get(job_ulid=job_ulid), mine, now)


def lock_holdings(
    *, lease_ulids: Collection[str], worker: Worker, now: datetime | None = None, whole: bool = True
) -> dict[str, Holding]:
    """The same for many leases, by their ids, at one time. Those that are unknown or another worker's are left out.

    The jobs are locked by one statement in the order of their keys, so that two such calls never wait for each other
    in a ring; the leases are read after it, as above. Unless `whole`, the jobs come without what was asked of them."""
    names = [list(lease_ulids), worker.worker_id]
    found = Job.objects.raw(_locked_jobs(whole=whole), names)
    jobs = {job.job_ulid: job for job in found}
    leases = [lease for lease in Lease.objects.raw(_LEASES, names) if lease.job_id in jobs]
    if not leases:
        return {}
    at = now or max(vars(lease)["at"] for lease in leases)
    for lease in leases:
        lease.job = jobs[lease.job_id]
    return {lease.lease_ulid: Holding(lease.job, lease, at) for lease in leases}


_MINE = "FROM runtime_worker_leases WHERE lease_ulid = ANY (%s) AND worker_id = %s"
_LEASES = f"SELECT *, clock_timestamp() AS at {_MINE}"


@cache
def _locked_jobs(*, whole: bool) -> str:
    """Written out: with hundreds of names the framework takes longer over such a question than the database."""
    fields = [field for field in Job._meta.concrete_fields if whole or field.attname not in REQUEST]  # noqa: SLF001
    columns = ", ".join(f'"{field.column}"' for field in fields)
    of_mine = f"job_ulid IN (SELECT job_ulid {_MINE})"
    return f"SELECT {columns} FROM runtime_jobs WHERE {of_mine} ORDER BY id FOR NO KEY UPDATE OF runtime_jobs"  # noqa: S608


def lock_open_lease(*, job_ulid: str, now: datetime | None = None) -> Holding | None:
    """Lock a job and return it with its open lease, for those who act without holding it; None if there is none."""
    job = Job.objects.locked().filter(job_ulid=job_ulid).first()
    if job is None or not job.is_held:
        return None
    return _after_the_wait(job, Lease.objects.open().filter(job=job), now)


def _after_the_wait(job: Job, lease: QuerySet[Lease], now: datetime | None) -> Holding:
    """A second statement, on purpose: one statement that locks and joins returns the fresh job with the lease as it
    was before the wait, and a stale worker gets through. Its clock is read after the lock for the same reason."""
    found = lease.annotate(at=ClockTimestamp()).get()
    found.job = job
    return Holding(job=job, lease=found, at=now or found.at)


def require_live(holding: Holding, *, session: str | None = None) -> None:
    """Raise StaleLease unless the lease is open, unexpired, and carries the job's current fence.

    `session` guards the calls that must not come from two processes under one worker id."""
    job, lease = holding.job, holding.lease
    if not lease.is_open:
        raise StaleLease(STALE_REASONS[lease.state], _final_status(job))
    if not lease.is_live(holding.at):
        raise StaleLease("lease_expired", _final_status(job))
    if lease.fence != job.fence or (session and lease.session and session != lease.session):
        raise StaleLease("lease_ended", _final_status(job))


def _final_status(job: Job) -> str | None:
    return job.public_status if job.is_final else None
