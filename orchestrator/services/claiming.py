"""The claim: a worker gets the next job it may run, with a lease that says so."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import connection

from leases.errors import StaleLease
from leases.models import Lease
from leases.scheduling.claims import Offer, claim_jobs
from leases.states import OPEN, LeaseState
from orchestrator.services import transitions
from orchestrator.services.idempotency import IdempotentRequest
from orchestrator.services.unit_of_work.operation import current_unit_of_work, lane_updates, operation
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import PreparedQuery
from workers.models import Worker


@dataclass(frozen=True)
class Claimed:
    """A job and the lease on it, as they were handed out. `replayed`: an earlier claim with the same key got it."""

    job: Job
    lease: Lease
    replayed: bool = False


@operation
def claim(
    *,
    worker: Worker,
    offer: Offer,
    acknowledge: bool = False,
    session: str = "",
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> Claimed | None:
    """Take the next job for this worker, or None: no work, no capacity left, or the worker drains. See `claim_many`."""
    return next(
        iter(_claimed(worker, offer, 1, acknowledge=acknowledge, session=session, idempotency=idempotency, now=now)),
        None,
    )


@operation
def claim_many(
    *,
    worker: Worker,
    offer: Offer,
    limit: int,
    acknowledge: bool = False,
    session: str = "",
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> list[Claimed]:
    """Take up to `most` of the next jobs for this worker, as far as its capacity goes.

    `acknowledge` promises an acknowledgement: the lease is granted and dies after its window; else it is active at
    once. With `once`, the same claim again returns those of the same leases that are open, if there are any.
    Raises StaleLease for a session that a newer process of the worker has replaced."""
    return _claimed(worker, offer, limit, acknowledge=acknowledge, session=session, idempotency=idempotency, now=now)


def _claimed(
    worker: Worker,
    offer: Offer,
    limit: int,
    *,
    acknowledge: bool,
    session: str,
    idempotency: IdempotentRequest | None,
    now: datetime | None,
) -> list[Claimed]:
    worker = _locked(worker)
    _takeover_session(worker, session)
    _record_offer(worker, offer)
    if idempotency and (earlier := _claimed_before(idempotency)):
        return earlier
    room = min(limit, worker.capacity - _held(worker, now)) if worker.may_claim else 0
    if room < 1:
        return []
    taken = claim_jobs(replace(offer, worker_id=worker.worker_id), limit=room)
    lane_updates().taken = taken
    at = now or taken.claimed_at
    if at is None:
        return []
    leases = [_create_lease(job, worker, at=at, acknowledge=acknowledge, session=session) for job in taken.jobs]
    if idempotency:
        idempotency.settle(" ".join(lease.lease_ulid for lease in leases), at=at)
    return [Claimed(lease.job, lease) for lease in leases]


_WORKER = PreparedQuery(Worker, "WHERE t.id = %s FOR NO KEY UPDATE OF t")
# The states are written out, so that the index of open leases serves also a plan without values.
_HELD = f"""SELECT count(*) FROM runtime_worker_leases
    WHERE worker_id = %s AND state IN ({", ".join(f"'{state}'" for state in OPEN)})
      AND expires_at > coalesce(%s, clock_timestamp())"""  # noqa: S608 our own names


def _locked(worker: Worker) -> Worker:
    found = _WORKER.first(worker.pk)
    assert found is not None  # noqa: S101 a worker is never deleted
    return found


def _takeover_session(worker: Worker, session: str) -> None:
    """Sessions are ULIDs: the newest process of a worker counts, and an older one hears that it was replaced."""
    if not session or session == worker.session:
        return
    if session < worker.session:
        raise StaleLease("lease_ended")
    Worker.objects.filter(pk=worker.pk).update(session=session)
    worker.session = session


def _record_offer(worker: Worker, offer: Offer) -> None:
    """Written only when it changes: a worker comes with the same again and again."""
    told = {
        "offered": sorted(offer.offers),
        "offered_types": sorted(offer.job_types),
        "offered_isolation": offer.isolation,
    }
    if any(getattr(worker, name) != value for name, value in told.items()):
        Worker.objects.filter(pk=worker.pk).update(**told)


def _held(worker: Worker, now: datetime | None) -> int:
    """Count the worker's live leases, whichever of its processes claimed them.

    Leases of replaced processes count until they end: else a worker holds its capacity again for each session that it
    names. A lease past its expiry does not count, swept or not: nothing can renew it."""
    with connection.cursor() as cursor:
        cursor.execute(_HELD, [worker.worker_id, now])
        return int(cursor.fetchone()[0])


def _claimed_before(idempotency: IdempotentRequest) -> list[Claimed]:
    known = idempotency.known()
    if known is None:
        return []
    leases = list(Lease.objects.open().select_related("job").filter(lease_ulid__in=known.split()).order_by("pk"))
    if not leases:
        idempotency.forget()
    return [Claimed(lease.job, lease, replayed=True) for lease in leases]


def _create_lease(job: Job, worker: Worker, *, at: datetime, acknowledge: bool, session: str) -> Lease:
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
        leased_at=at,
        expires_at=at + timedelta(seconds=job.acknowledge_within_seconds),
    )
    transitions.leased(job, at=at, actor=actor)
    if not acknowledge:
        transitions.acknowledge(job, lease, at=at, actor=actor)
    current_unit_of_work().add(lease)
    transitions.mark_dirty(job, at)
    return lease
