"""Claims jobs: a worker receives the next jobs that it can execute, each with a lease.

A claim is one SQL statement outside a transaction; see `leases/sql/claim.sql`. Only a claim with an idempotency key
opens a transaction around it.
"""

import random
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from django.db import OperationalError, transaction

from leases.models import Lease
from leases.scheduling.claims import AttachedClaim, Claimant, ClaimResult, Offer, claim_for_each, claim_jobs
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.unit_of_work import MAX_ATTEMPTS, MAX_PAUSE_SECONDS, is_retryable
from runtime_jobs.db_errors import is_database_unavailable
from runtime_jobs.models import Job
from workers.models import Worker

# An attempt visits 16 queues and records those that turned out to be empty, so the next one begins behind them. A queue
# whose only job was claimed looks full until then: a job of lower priority may wait behind any number of them.
MAX_INCONCLUSIVE_ATTEMPTS = 16
MAX_INCONCLUSIVE_PAUSE_SECONDS = 0.005
MAX_WORKERS, MAX_JOBS = 16, 64  # of one statement; a single worker may ask for any number of jobs


class ClaimAttempt(Protocol):
    """The result of one attempt to claim.

    Attributes:
        again: Whether the attempt was inconclusive.
    """

    @property
    def again(self) -> bool: ...


A = TypeVar("A", bound=ClaimAttempt)


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


@dataclass(frozen=True)
class ClaimOrder:
    """The arguments of a claim: see `claim_many`.

    Attributes:
        lease_ulid: The id of the lease, for a claim of one job. None for a new id.
    """

    worker: Worker
    offer: Offer
    limit: int = 1
    acknowledge: bool = False
    session: str = ""
    lease_ulid: str | None = None

    @property
    def group(self) -> tuple[Any, ...]:
        """Orders whose groups are equal may share a statement."""
        types = tuple(sorted(self.offer.job_types))
        offer = self.offer.pool, types, self.offer.offers, self.offer.isolation
        return offer, self.limit, self.acknowledge, self.lease_ulid is None


def claim(
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
    claims = claim_many(
        worker=worker,
        offer=offer,
        limit=1,
        acknowledge=acknowledge,
        session=session,
        idempotency=idempotency,
        now=now,
    )
    return next(iter(claims), None)


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
    """Claim up to `limit` of the next jobs for this worker, within its capacity.

    Args:
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
    if idempotency is None:
        return _claim_alone(ClaimOrder(worker, offer, limit, acknowledge, session), now)

    def attempt(limit: int = limit) -> ClaimResult:
        return claim_jobs(worker, offer, limit=limit, acknowledge=acknowledge, session=session, now=now)

    replayed: list[Claimed] = []

    def attempt_once() -> ClaimResult:
        with transaction.atomic(durable=True):
            attempt(0)  # the worker's row, which makes a second request with the key wait
            replayed[:] = _replay(idempotency)
            if replayed:
                return ClaimResult([])
            result = attempt()
            if result.leases:
                idempotency.bind(" ".join(lease.lease_ulid for lease in result.leases), now=result.leases[0].leased_at)
            return result

    claimed = _repeated(attempt_once)
    return replayed or _as_claims(claimed)


def claim_for_workers(orders: Sequence[ClaimOrder], *, now: datetime | None = None) -> list[list[Claimed] | Exception]:
    """Claim for several workers, with one statement for all that offer the same; see `claim_many`.

    Args:
        orders: What the workers ask for. A second claim of a worker follows the first one.
        now: Timestamp of the leases; by default the time of the database.

    Returns:
        The claims of each order, or its error: `StaleLease` if a newer process of the worker has replaced its session,
        `WorkerLocked` if others claim with the worker and must not wait for its row.
        An error of one statement is not raised, because the jobs of another one may be leased by then.
    """
    results: dict[int, list[Claimed] | Exception] = {}
    waiting = dict(enumerate(orders))
    while waiting:
        groups: dict[Hashable, dict[int, ClaimOrder]] = {}
        workers: set[Any] = set()
        for place, order in waiting.items():
            if order.worker.pk not in workers:
                workers.add(order.worker.pk)
                groups.setdefault(order.group, {})[place] = order
        for group in groups.values():
            waiting = {place: order for place, order in waiting.items() if place not in group}
            for together in _statements(group):
                results |= _claim_together(together, now)
    return [results[place] for place in range(len(orders))]


def _statements(group: dict[int, ClaimOrder]) -> Iterator[dict[int, ClaimOrder]]:
    """Yield the orders of each statement. Between two of them the shares of organizations are charged."""
    places = list(group)
    most = max(1, min(MAX_WORKERS, MAX_JOBS // max(1, group[places[0]].limit)))
    for first in range(0, len(places), most):
        yield {place: group[place] for place in places[first : first + most]}


def _claim_together(orders: dict[int, ClaimOrder], now: datetime | None) -> dict[int, list[Claimed] | Exception]:
    """Claim for workers that offer the same.

    A claim that was inconclusive is repeated for the workers without a job. After an error, which concerns these only,
    each of them claims by itself, unless the database is unavailable: a statement that failed has stored nothing.
    """
    found: dict[int, ClaimResult] = {}
    waiting = dict(orders)

    def attempt() -> ClaimResult:
        order = next(iter(waiting.values()))
        claimants = [Claimant(other.worker, other.session, other.lease_ulid) for other in waiting.values()]
        results = claim_for_each(claimants, order.offer, limit=order.limit, acknowledge=order.acknowledge, now=now)
        found.update(zip(waiting, results, strict=True))
        for place in [place for place in waiting if not found[place].again]:
            del waiting[place]
        return ClaimResult([], again=bool(waiting))

    failed: dict[int, list[Claimed] | Exception] = {}
    try:
        _repeated(attempt)
    except Exception as error:  # noqa: BLE001 it is the result of those that wait
        if len(waiting) == 1 or is_database_unavailable(error):
            failed = dict.fromkeys(waiting, error)
        else:
            for place, order in list(waiting.items()):
                failed |= _claim_together({place: order}, now)
    return {place: result.refusal or _as_claims(result) for place, result in found.items()} | failed


def claim_one(claim: AttachedClaim) -> Lease | None:
    """Make the claim that a final message carries, by a statement of its own.

    Returns:
        The lease with its job, or None if no job is available.

    Raises:
        StaleLease: A newer process of the worker has replaced this session.
    """
    order = ClaimOrder(claim.worker, claim.offer, 1, claim.acknowledge, claim.session, claim.lease_ulid)
    return next((claimed.lease for claimed in _claim_alone(order, claim.now)), None)


def _claim_alone(order: ClaimOrder, now: datetime | None) -> list[Claimed]:
    (claims,) = claim_for_workers([order], now=now)
    if isinstance(claims, Exception):
        raise claims
    return claims


def _as_claims(result: ClaimResult) -> list[Claimed]:
    return [Claimed(lease.job, lease) for lease in result.leases]


def repeat_inconclusive(attempt: Callable[[], A]) -> A:
    """Repeat a claim that was inconclusive: it found no job, and nothing shows that no job waits.

    Args:
        attempt: Makes the claim, in a transaction of its own.

    Returns:
        The first conclusive attempt, or the last one.
    """
    for number in range(1, MAX_INCONCLUSIVE_ATTEMPTS):
        result = attempt()
        if not result.again:
            return result
        if number >= MAX_ATTEMPTS:  # other claims hold locks, or many queues turn out to be empty
            _pause(MAX_INCONCLUSIVE_PAUSE_SECONDS)
    return attempt()


def _repeated(attempt: Callable[[], ClaimResult]) -> ClaimResult:
    """Repeat a claim that was inconclusive, or that PostgreSQL has ended because of a deadlock."""

    def attempt_through_deadlocks() -> ClaimResult:
        for number in range(1, MAX_ATTEMPTS):
            try:
                return attempt()
            except OperationalError as error:
                if not is_retryable(error):
                    raise
                _pause(MAX_PAUSE_SECONDS * number)
        return attempt()

    return repeat_inconclusive(attempt_through_deadlocks)


def _pause(at_most: float) -> None:
    time.sleep(random.uniform(0, at_most))  # noqa: S311 jitter, not a secret


def _replay(idempotency: IdempotentRequest) -> list[Claimed]:
    stored = idempotency.lookup()
    if stored is None:
        return []
    leases = list(Lease.objects.open().select_related("job").filter(lease_ulid__in=stored.split()).order_by("pk"))
    if not leases:
        idempotency.release()
    return [Claimed(lease.job, lease, replayed=True) for lease in leases]
