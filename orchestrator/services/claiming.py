"""Claims jobs: a worker receives the next jobs that it can execute, each with a lease."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import connection

from leases.errors import StaleLease
from leases.models import Lease
from leases.scheduling.claims import Offer, claim_jobs
from leases.states import OPEN, LeaseState
from orchestrator.services import transitions
from orchestrator.services.idempotency import IdempotentRequest
from orchestrator.services.unit_of_work import UnitOfWork, operation
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import PreparedQuery
from workers.models import Worker


@dataclass(frozen=True)
class Claimed:
    """A job and the lease on it.

    Attributes:
        job: The job.
        lease: Its lease.
        replayed: An earlier claim with the same idempotency key created the lease.
    """

    job: Job
    lease: Lease
    replayed: bool = False


@operation(retry_inconclusive_claim=True)
def claim(
    uow: UnitOfWork,
    *,
    worker: Worker,
    offer: Offer,
    acknowledge: bool = False,
    session: str = "",
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> Claimed | None:
    """Claim the next job for this worker; see `claim_many`.

    Returns:
        The job and its lease; None if no job is available, the worker has no free capacity, or is drained.
    """
    claims = _claim(uow, worker, offer, 1, acknowledge=acknowledge, session=session, idempotency=idempotency, now=now)
    return next(iter(claims), None)


@operation(retry_inconclusive_claim=True)
def claim_many(
    uow: UnitOfWork,
    *,
    worker: Worker,
    offer: Offer,
    limit: int,
    acknowledge: bool = False,
    session: str = "",
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> list[Claimed]:
    """Claim up to `limit` of the next jobs for this worker, within its capacity.

    Args:
        uow: The unit of work, which `operation` passes.
        worker: The worker.
        offer: The pool, job types, isolation and capabilities that the worker offers.
        limit: The maximum number of jobs.
        acknowledge: Whether the worker promises to acknowledge the leases. They are granted then and end after
            `acknowledge_within_seconds`; else they are active at once.
        session: The ULID of the worker's process, or empty.
        idempotency: The idempotency key. The same claim again returns its leases that are still open. If none is, it
            claims anew.
        now: Timestamp of the leases; by default the time of the database.

    Raises:
        StaleLease: A newer process of the worker has replaced this session.
        IdempotencyConflict: The key was used with another request.
    """
    return _claim(uow, worker, offer, limit, acknowledge=acknowledge, session=session, idempotency=idempotency, now=now)


def _claim(
    uow: UnitOfWork,
    worker: Worker,
    offer: Offer,
    limit: int,
    *,
    acknowledge: bool,
    session: str,
    idempotency: IdempotentRequest | None,
    now: datetime | None,
) -> list[Claimed]:
    worker = _lock_worker(worker)
    _take_over_session(worker, session)
    _record_offer(worker, offer)
    if idempotency and (earlier := _replay(idempotency)):
        return earlier
    capacity = min(limit, worker.capacity - _count_live_leases(worker, now)) if worker.may_claim else 0
    if capacity < 1:
        return []
    claimed = claim_jobs(replace(offer, worker_id=worker.worker_id), limit=capacity)
    uow.lane_updates.taken = claimed  # the last statement of the transaction records empty lanes and full limits
    leased_at = now or claimed.claimed_at
    if leased_at is None or not claimed.jobs:
        return []
    leases = [
        _create_lease(uow, job, worker, now=leased_at, acknowledge=acknowledge, session=session) for job in claimed.jobs
    ]
    if idempotency:
        idempotency.bind(" ".join(lease.lease_ulid for lease in leases), now=leased_at)
    return [Claimed(lease.job, lease) for lease in leases]


_WORKER = PreparedQuery(Worker, "WHERE t.id = %s FOR NO KEY UPDATE OF t")
# The states are written into the text, so that a generic plan can use the partial index of open leases.
_LIVE_LEASES = f"""SELECT count(*) FROM runtime_worker_leases
    WHERE worker_id = %s AND state IN ({", ".join(f"'{state}'" for state in OPEN)})
      AND expires_at > coalesce(%s, clock_timestamp())"""  # noqa: S608 our own names


def _lock_worker(worker: Worker) -> Worker:
    locked = _WORKER.first(worker.pk)
    assert locked is not None  # noqa: S101 a worker is never deleted
    return locked


def _take_over_session(worker: Worker, session: str) -> None:
    """Store a newer session of the worker, and refuse an older one. Sessions are ULIDs, so they sort by age."""
    if not session or session == worker.session:
        return
    if session < worker.session:
        raise StaleLease("lease_ended")
    Worker.objects.filter(pk=worker.pk).update(session=session)
    worker.session = session


def _record_offer(worker: Worker, offer: Offer) -> None:
    """Store the offer if it changed: most claims of a worker make the same one."""
    offered = {
        "offered": sorted(offer.offers),
        "offered_types": sorted(offer.job_types),
        "offered_isolation": offer.isolation,
    }
    if any(getattr(worker, name) != value for name, value in offered.items()):
        Worker.objects.filter(pk=worker.pk).update(**offered)


def _count_live_leases(worker: Worker, now: datetime | None) -> int:
    """Count the worker's live leases, whichever of its processes claimed them.

    Leases of replaced processes count until they end: else a worker could claim its capacity again with each session.
    An expired lease does not count, even before the scheduler ends it: nothing can renew it.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LIVE_LEASES, [worker.worker_id, now])
        return int(cursor.fetchone()[0])


def _replay(idempotency: IdempotentRequest) -> list[Claimed]:
    stored = idempotency.lookup()
    if stored is None:
        return []
    leases = list(Lease.objects.open().select_related("job").filter(lease_ulid__in=stored.split()).order_by("pk"))
    if not leases:
        idempotency.release()
    return [Claimed(lease.job, lease, replayed=True) for lease in leases]


def _create_lease(
    uow: UnitOfWork, job: Job, worker: Worker, *, now: datetime, acknowledge: bool, session: str
) -> Lease:
    actor = Actor("worker", worker.worker_id)
    lease = Lease(
        job=job,
        worker=worker,
        pool=job.pool,
        state=LeaseState.GRANTED,
        fence=job.fence,
        session=session,
        ttl_seconds=job.lease_ttl_seconds,
        heartbeat_interval_seconds=job.heartbeat_interval_seconds,
        acknowledge_within_seconds=job.acknowledge_within_seconds,
        leased_at=now,
        expires_at=now + timedelta(seconds=job.acknowledge_within_seconds),
    )
    transitions.record_claim(uow, job, now=now, actor=actor)
    if not acknowledge:
        transitions.acknowledge(uow, job, lease, now=now, actor=actor)
    uow.add(lease)
    transitions.mark_changed(uow, job, now)
    return lease
