"""The fence: who may speak for a job. Every verb of a worker comes through here, and holds the job's lock after it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from leases.errors import StaleLease
from leases.models import Lease
from leases.states import STALE_REASONS
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import SUBMISSION_FIELDS
from runtime_jobs.prepared_queries import PreparedQuery
from workers.models import Worker

# A lease's job never changes, so that it may be looked up in the statement that locks the job.
_OF = "WHERE t.job_ulid = (SELECT job_ulid FROM runtime_worker_leases WHERE lease_ulid = %s AND worker_id = %s)"
_MINE = "WHERE lease_ulid = ANY (%s) AND worker_id = %s"
_OF_MANY = f"WHERE t.job_ulid IN (SELECT job_ulid FROM runtime_worker_leases {_MINE}) ORDER BY t.id"  # noqa: S608 our own names
_LOCKED = "FOR NO KEY UPDATE OF t"
_AT = {"at": "clock_timestamp()"}
_NEWEST_SESSION = {"newest_session": "(SELECT w.session FROM workers_worker w WHERE w.worker_id = t.worker_id)"}
_JOB_OF = PreparedQuery(Job, f"{_OF} {_LOCKED}")
_JOBS_OF = PreparedQuery(Job, f"{_OF_MANY} {_LOCKED}")
_JOBS_OF_UNASKED = PreparedQuery(Job, f"{_OF_MANY} {_LOCKED}", without=SUBMISSION_FIELDS)
_LEASE = PreparedQuery(Lease, "WHERE t.lease_ulid = %s", computed=_AT | _NEWEST_SESSION)
_LEASES = PreparedQuery(Lease, _MINE, computed=_AT | _NEWEST_SESSION)
_OF_JOB = "WHERE t.job_ulid = %s AND t.worker_id = %s AND (%s::bigint IS NULL OR t.fence = %s)"
_NEWEST = PreparedQuery(Lease, f"{_OF_JOB} ORDER BY t.fence DESC LIMIT 1", computed=_AT)


@dataclass(frozen=True)
class LockedLease:
    """A job under its lock, the lease as it is after the wait for that lock, and the database's time after both.

    `newest_session` names the worker's newest process, as of the same statement."""

    job: Job
    lease: Lease
    at: datetime
    newest_session: str = ""


def lock_lease(*, lease_ulid: str, worker: Worker, now: datetime | None = None) -> LockedLease:
    """Lock the job of this worker's lease. Says nothing yet about whether the lease still counts.

    Raises StaleLease `unknown_lease` for a lease that does not exist or is another worker's."""
    job = _JOB_OF.first(lease_ulid, worker.worker_id)
    if job is None:
        raise StaleLease("unknown_lease")
    return _read_lease_after_lock(job, lease_ulid, now)


def lock_leases(
    *, lease_ulids: Collection[str], worker: Worker, now: datetime | None = None, whole: bool = True
) -> dict[str, LockedLease]:
    """The same for many leases, by their ids, at one time. Those that are unknown or another worker's are left out.

    The jobs are locked by one statement in the order of their keys, so that two such calls never wait for each other
    in a ring; the leases are read after it, as above. Unless `whole`, the jobs come without what was asked of them."""
    names = [list(lease_ulids), worker.worker_id]
    jobs = {job.job_ulid: job for job in (_JOBS_OF if whole else _JOBS_OF_UNASKED).all(*names)}
    leases = [lease for lease in _LEASES.all(*names) if lease.job_id in jobs]
    if not leases:
        return {}
    at = now or max(vars(lease)["at"] for lease in leases)
    for lease in leases:
        lease.job = jobs[lease.job_id]
    return {lease.lease_ulid: LockedLease(lease.job, lease, at, vars(lease)["newest_session"]) for lease in leases}


def newest_holding(*, job_ulid: str, worker: Worker, fence: int | None = None) -> LockedLease | None:
    """Read a job and this worker's newest lease on it, or its lease with this fence, without a lock.

    Returns None where the worker never had such a lease. Says nothing about whether the lease counts."""
    lease = _NEWEST.first(job_ulid, worker.worker_id, fence, fence)
    if lease is None:
        return None
    lease.job = Job.objects.get(job_ulid=job_ulid)
    return LockedLease(job=lease.job, lease=lease, at=vars(lease)["at"])


def lock_current_lease(*, job_ulid: str, now: datetime | None = None) -> LockedLease | None:
    """Lock a job and return it with its open lease, for those who act without holding it; None if there is none."""
    job = Job.objects.locked().filter(job_ulid=job_ulid).first()
    if job is None or not job.is_held:
        return None
    lease_ulid = Lease.objects.open().values_list("lease_ulid", flat=True).get(job=job)
    return _read_lease_after_lock(job, lease_ulid, now)


def _read_lease_after_lock(job: Job, lease_ulid: str, now: datetime | None) -> LockedLease:
    """A second statement, on purpose: one statement that locks and joins returns the fresh job with the lease as it
    was before the wait, and a stale worker gets through. Its clock is read after the lock for the same reason."""
    lease = _LEASE.first(lease_ulid)
    assert lease is not None  # noqa: S101 it names the job, and leases stay
    lease.job = job
    return LockedLease(job, lease, now or vars(lease)["at"], vars(lease)["newest_session"])


def require_valid_lease(holding: LockedLease) -> None:
    """Raise StaleLease unless the lease is open, unexpired, and carries the job's current fence."""
    job, lease = holding.job, holding.lease
    if not lease.is_open:
        raise StaleLease(STALE_REASONS[lease.state], _final_status(job))
    if not lease.is_live(holding.at):
        raise StaleLease("lease_expired", _final_status(job))
    if lease.fence != job.fence:
        raise StaleLease("lease_ended", _final_status(job))


def require_present_session(holding: LockedLease, session: str | None) -> None:
    """Raise StaleLease unless the lease belongs to the calling process and to the newest process of its worker.

    Guards what only a process that executes the job sends: acknowledgements, heartbeats, reports. A replaced process
    must not renew its leases, whatever session it names: a worker would hold its capacity once for each process.

    Args:
        holding: The lease. One that was claimed without a session belongs to no process and passes.
        session: The session that the call names; None or empty where it names none.
    """
    own = holding.lease.session
    if own and ((session and session != own) or own < holding.newest_session):
        raise StaleLease("lease_ended", _final_status(holding.job))


def _final_status(job: Job) -> str | None:
    return job.public_status if job.is_final else None
