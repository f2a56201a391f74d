"""The fence: which worker may change a job. Every operation of a worker begins here.

In a transaction it locks the job and then reads the lease. In an optimistic attempt it reads both without a lock and
remembers their versions, which the store compares under the lock (docs/adr/0053).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from leases.errors import StaleLease
from leases.models import Lease
from leases.states import STALE_REASONS
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import SUBMISSION_FIELDS
from runtime_jobs.prepared_queries import PreparedQuery, Sql
from runtime_jobs.states import JobState
from workers.models import Worker


@dataclass(frozen=True)
class LeaseRow:
    """A lease, the database's clock, and the newest session of its worker, all as of one statement."""

    lease: Lease
    now: Annotated[datetime, Sql("clock_timestamp()")]
    newest_session: Annotated[str, Sql("(SELECT w.session FROM workers_worker w WHERE w.worker_id = t.worker_id)")]


@dataclass(frozen=True)
class UnlockedRow:
    """A job, its lease, the versions of both, the database's clock, and the newest session: one snapshot."""

    job: Job
    lease: Lease
    job_version: Annotated[str, Sql("t.xmin")]
    lease_version: Annotated[str, Sql("lease.xmin")]
    now: Annotated[datetime, Sql("clock_timestamp()")]
    newest_session: Annotated[str, Sql("(SELECT w.session FROM workers_worker w WHERE w.worker_id = lease.worker_id)")]


@dataclass
class RowVersions:
    """The versions of rows that an optimistic attempt has read without a lock.

    A version is `xmin`, the transaction that wrote the row. Each transaction that changes a row gives it another one,
    and a lock gives it none. Only rows that change are compared: a heartbeat that changes nothing of the job counts as
    earlier than a change of the job that commits meanwhile.

    Attributes:
        jobs: Versions by the keys of jobs.
        leases: Versions by the keys of leases.
        live_until: The first expiry of a lease that was live when it was read. The lease must still be live when the
            changes are written: a worker could else have more live leases than its capacity. None without such a
            lease, and if the caller gave the time.
    """

    jobs: dict[int, str] = field(default_factory=dict)
    leases: dict[int, str] = field(default_factory=dict)
    live_until: datetime | None = None

    def remember(self, row: UnlockedRow, *, now: datetime | None) -> None:
        """Remember the versions of a row. `now` is the time that the caller gave."""
        self.jobs[row.job.pk], self.leases[row.lease.pk] = row.job_version, row.lease_version
        if now is None and row.lease.is_live(row.now):
            self.live_until = min(self.live_until or row.lease.expires_at, row.lease.expires_at)

    def of_jobs(self, jobs: Iterable[Job]) -> list[tuple[int, str]]:
        """Return keys and versions of these jobs, in the order of keys.

        Raises:
            KeyError: A job was not read by this attempt.
        """
        return [(key, self.jobs[key]) for key in sorted(job.pk for job in jobs)]

    def of_leases(self, leases: Iterable[Lease]) -> list[tuple[int, str]]:
        """Return keys and versions of these leases, in the order of keys.

        Raises:
            KeyError: A lease was not read by this attempt.
        """
        return [(key, self.leases[key]) for key in sorted(lease.pk for lease in leases)]


# The job of a lease never changes, so the statement that locks the job may look it up.
_JOB_OF_LEASE = (
    "WHERE t.job_ulid = (SELECT job_ulid FROM runtime_worker_leases WHERE lease_ulid = %s AND worker_id = %s)"
)
_OF_WORKERS = "WHERE lease_ulid = ANY (%s) AND worker_id = ANY (%s)"
_JOBS_OF_LEASES = f"WHERE t.job_ulid IN (SELECT job_ulid FROM runtime_worker_leases {_OF_WORKERS}) ORDER BY t.id"  # noqa: S608 our own names
_OF_JOB = "WHERE t.job_ulid = %s AND t.worker_id = %s AND (%s::bigint IS NULL OR t.fence = %s)"
_LOCKED = "FOR NO KEY UPDATE OF t"

_LOCK_JOB = PreparedQuery(Job, f"{_JOB_OF_LEASE} {_LOCKED}")
_LOCK_JOBS = PreparedQuery(Job, f"{_JOBS_OF_LEASES} {_LOCKED}")
_LOCK_JOBS_WITHOUT_SPEC = PreparedQuery(Job, f"{_JOBS_OF_LEASES} {_LOCKED}", without=SUBMISSION_FIELDS)
# The lease is locked, too: a heartbeat that changes nothing of the job locks only the lease.
_LEASE = PreparedQuery(LeaseRow, f"WHERE t.lease_ulid = %s {_LOCKED}")
_LEASES = PreparedQuery(LeaseRow, f"{_OF_WORKERS} ORDER BY t.id {_LOCKED}")
# What messages decide by and what they change. Anything else is a query of its own, or is read under the lock.
_MESSAGE_FIELDS = frozenset(
    (
        *Job.CHANGED_FIELDS,
        *("id", "job_ulid", "org_slug", "project_slug", "job_type", "correlation_id", "needs_ingest", "fence"),
        *("awaited", "pool", "created_at", "complete_beats_cancel", "automatic_retries", "automatic_retries_spent"),
        *("late_result_seconds", "needs_processing", "timeout_seconds", "timeout_grace_seconds", "max_requeues"),
        *("is_metered", "has_artifacts"),
    )
)
_UNREAD_FIELDS = [field.attname for field in Job._meta.concrete_fields if field.attname not in _MESSAGE_FIELDS]  # noqa: SLF001 Django's name
_UNLOCKED_SOURCE = "JOIN runtime_worker_leases lease ON lease.job_ulid = t.job_ulid"
# PostgreSQL takes an array for ten elements and plans for its values at each call. One id has one plan for all values.
_UNLOCKED_ONE = PreparedQuery(
    UnlockedRow,
    f"{_UNLOCKED_SOURCE} WHERE lease.lease_ulid = %s AND lease.worker_id = %s",
    without=_UNREAD_FIELDS,
)
_UNLOCKED = PreparedQuery(
    UnlockedRow,
    f"{_UNLOCKED_SOURCE} WHERE lease.lease_ulid = ANY (%s) AND lease.worker_id = ANY (%s) ORDER BY t.id",
    without=_UNREAD_FIELDS,
)
_JOB = PreparedQuery(Job, "WHERE t.job_ulid = %s")
_NEWEST = PreparedQuery(LeaseRow, f"{_OF_JOB} ORDER BY t.fence DESC LIMIT 1")


@dataclass(frozen=True)
class LockedLease:
    """A locked job, its lease as read after the wait for that lock, and the database's clock after both.

    In an optimistic attempt the rows are not locked, and of one snapshot; see `RowVersions`.

    Attributes:
        job: The job; its row is locked until the transaction ends.
        lease: The lease. Nothing shows yet that it is valid: see `require_valid_lease`.
        now: The database's clock, or the time that the caller gave.
        newest_session: The newest session of the worker, as of the statement that read the lease.
    """

    job: Job
    lease: Lease
    now: datetime
    newest_session: str = ""


def lock_lease(
    *, lease_ulid: str, worker: Worker, now: datetime | None = None, versions: RowVersions | None = None
) -> LockedLease:
    """Lock the job of this worker's lease. The lease may be stale: see `require_valid_lease`.

    Args:
        lease_ulid: The id of the lease.
        worker: The worker that must hold the lease.
        now: Replaces the database's clock, for tests.
        versions: Lock nothing, and remember the versions of the rows here.

    Raises:
        StaleLease: `unknown_lease`; the lease does not exist or is another worker's.
    """
    if versions is not None:
        found = _read_unlocked({lease_ulid: worker}, now, versions)
        if not found:
            raise StaleLease("unknown_lease")
        return found[0]
    job = _LOCK_JOB.first(lease_ulid, worker.worker_id)
    if job is None:
        raise StaleLease("unknown_lease")
    return _read_lease_after_lock(job, lease_ulid, now)


def lock_leases(
    *,
    owners: Mapping[str, Worker],
    now: datetime | None = None,
    whole: bool = True,
    versions: RowVersions | None = None,
) -> dict[str, LockedLease]:
    """Lock the jobs of many leases, by one statement in the order of their keys.

    Two such calls never deadlock. The leases are read by a second statement, as in `lock_lease`.

    Args:
        owners: The worker that must hold each lease, by the id of the lease. Unknown leases and those of other workers
            are left out.
        now: Replaces the database's clock, for tests.
        whole: Read the specification of the jobs, too.
        versions: Lock nothing, and remember the versions of the rows here. The specification is not read.

    Returns:
        The locked leases by their ids, all with the same time.
    """
    if versions is not None:
        unlocked = _read_unlocked(owners, now, versions)
        return {locked.lease.lease_ulid: locked for locked in unlocked}
    values = _lease_and_worker_ids(owners)
    jobs = {job.job_ulid: job for job in (_LOCK_JOBS if whole else _LOCK_JOBS_WITHOUT_SPEC).all(*values)}
    rows = [row for row in _LEASES.all(*values) if row.lease.job_id in jobs and _is_owned(row.lease, owners)]
    if not rows:
        return {}
    read_at = now or max(row.now for row in rows)
    for row in rows:
        row.lease.job = jobs[row.lease.job_id]
    return {row.lease.lease_ulid: LockedLease(row.lease.job, row.lease, read_at, row.newest_session) for row in rows}


def _read_unlocked(owners: Mapping[str, Worker], now: datetime | None, versions: RowVersions) -> list[LockedLease]:
    """Read leases with their jobs by one statement, in the order of the jobs, all with the same time."""
    if len(owners) == 1:
        ((lease_ulid, worker),) = owners.items()
        rows = _UNLOCKED_ONE.all(lease_ulid, worker.worker_id)
    else:
        rows = [row for row in _UNLOCKED.all(*_lease_and_worker_ids(owners)) if _is_owned(row.lease, owners)]
    if not rows:
        return []
    read_at = now or max(row.now for row in rows)
    for row in rows:
        versions.remember(row, now=now)
        row.lease.job = row.job
    return [LockedLease(row.job, row.lease, read_at, row.newest_session) for row in rows]


def _lease_and_worker_ids(owners: Mapping[str, Worker]) -> list[list[str]]:
    return [list(owners), list({worker.worker_id for worker in owners.values()})]


def _is_owned(lease: Lease, owners: Mapping[str, Worker]) -> bool:
    """Report whether the lease belongs to the worker that names it, not only to one of the workers of the call."""
    return lease.worker_id == owners[lease.lease_ulid].worker_id


def newest_holding(*, job_ulid: str, worker: Worker, fence: int | None = None) -> LockedLease | None:
    """Read a job and this worker's newest lease on it, or its lease with this fence, without a lock.

    Returns:
        None if the worker never had such a lease. Nothing shows that the lease is valid.
    """
    row = _NEWEST.first(job_ulid, worker.worker_id, fence, fence)
    job = _JOB.first(job_ulid)
    if row is None or job is None:
        return None
    row.lease.job = job
    return LockedLease(job, row.lease, row.now, row.newest_session)


def lock_current_lease(*, job_ulid: str, now: datetime | None = None) -> LockedLease | None:
    """Lock a job and return it with its open lease, for operators and periodic tasks; None if no lease is open."""
    job = Job.objects.locked().filter(job_ulid=job_ulid).first()
    if job is None or not job.is_held:
        return None
    lease_ulid = Lease.objects.open().values_list("lease_ulid", flat=True).get(job=job)
    return _read_lease_after_lock(job, lease_ulid, now)


def lock_newest_lease(*, job_ulid: str, worker: Worker, now: datetime | None = None) -> LockedLease:
    """Lock a job and return it with its newest lease, which may have ended.

    Args:
        job_ulid: The id of the job.
        worker: The worker that must hold or have held that lease.
        now: Replaces the database's clock, for tests.

    Raises:
        StaleLease: `unknown_lease`; the job has no lease, or its newest one is another worker's.
    """
    job = Job.objects.locked().filter(job_ulid=job_ulid).first()
    if job is None:
        raise StaleLease("unknown_lease")
    newest = Lease.objects.filter(job=job, fence=job.fence, worker_id=worker.worker_id)
    lease_ulid = newest.values_list("lease_ulid", flat=True).first()
    if lease_ulid is None:
        raise StaleLease("unknown_lease")
    return _read_lease_after_lock(job, lease_ulid, now)


def _read_lease_after_lock(job: Job, lease_ulid: str, now: datetime | None) -> LockedLease:
    """Read the lease by a second statement, after the lock of its job.

    One statement that locks and joins would return the new job with the lease as it was before the wait: a stale worker
    would pass. The clock is read after the lock for the same reason.
    """
    row = _LEASE.first(lease_ulid)
    assert row is not None  # noqa: S101 a lease of the job was found before, and leases are deleted with their job only
    row.lease.job = job
    return LockedLease(job, row.lease, now or row.now, row.newest_session)


def require_valid_lease(holding: LockedLease) -> None:
    """Check that the lease is open, unexpired, and carries the job's current fence.

    Raises:
        StaleLease: `lease_expired`, `lease_revoked` or `lease_ended`, with the job's status if that is final.
    """
    job, lease = holding.job, holding.lease
    if not lease.is_open:
        raise StaleLease(STALE_REASONS[lease.state], _final_status(job))
    if not lease.is_live(holding.now):
        raise StaleLease("lease_expired", _final_status(job))
    if lease.fence != job.fence:
        raise StaleLease("lease_ended", _final_status(job))


def accepts_late_result(holding: LockedLease) -> bool:
    """Report whether a result under this lease counts although the lease has ended.

    The job must be lost, its late window open, and the lease its newest one: a later worker has replaced any other.
    """
    job = holding.job
    if job.state != JobState.LOST or holding.lease.fence != job.fence:
        return False
    return job.late_result_at is not None and holding.now < job.late_result_at


def require_present_session(holding: LockedLease, session: str | None) -> None:
    """Check that the lease belongs to the calling process and to the newest process of its worker.

    Guards messages that only a process sends which executes the job: acknowledgements, heartbeats, reports. A replaced
    process must not renew its leases, whatever session it names: a worker would use its capacity once for each process.

    Args:
        holding: The lease. One that was claimed without a session belongs to no process and passes.
        session: The session that the call names; None or empty where it names none.

    Raises:
        StaleLease: `lease_ended`.
    """
    own = holding.lease.session
    if own and ((session and session != own) or own < holding.newest_session):
        raise StaleLease("lease_ended", _final_status(holding.job))


def _final_status(job: Job) -> str | None:
    return job.public_status if job.is_final else None
