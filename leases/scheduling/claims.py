"""The claim: choose the jobs that a worker runs next, and lease them, by one SQL function.

Besides the services, only this SQL writes the state of a job or a lease.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from leases.errors import StaleLease, WorkerLocked
from leases.models import Lease
from runtime_jobs.identifiers import new_ids
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import PreparedQuery, Sql
from workers.models import Worker

ISOLATION_LEVELS = ("none", "restricted", "namespaces", "microvm")  # weakest first

# What no response to a claim contains. Reading one of these attributes is a query.
UNREAD_JOB_FIELDS = (
    *("status", "lane_id", "concurrency_key", "limited_by_address", "excluded_workers", "payload_digest"),
    *("source_address", "max_requeues", "automatic_retries", "complete_beats_cancel", "requeue_count"),
    *("release_count", "event_seq", "event_head", "progress", "log_bytes", "cancel_requested_at", "cancel_reason"),
    *("cancel_actor", "cancel_message", "cancel_deadline_at", "ingest_run_id", "failure_reason", "failure_class"),
    *("failure_message", "exit_code", "result", "retry_kind", "awaited", "automatic_retries_spent", "executing_at"),
    *("finished_at", "pool", "priority", "late_result_seconds", "late_result_at", "needs_processing"),
    *("timeout_grace_seconds", "is_metered", "last_billed_minute"),
)


@dataclass(frozen=True)
class Offer:
    """The offer of a worker with a claim.

    `offers` are labels and capabilities in one set; `isolation` is the strongest level of the worker.
    """

    worker_id: str
    pool: str
    job_types: tuple[str, ...]
    offers: frozenset[str]
    isolation: str

    @property
    def isolations(self) -> list[str]:
        """The minimum isolations of jobs that this worker may run."""
        return list(ISOLATION_LEVELS[: ISOLATION_LEVELS.index(self.isolation) + 1])


@dataclass(frozen=True)
class ClaimedRow:
    """A row of `claim`: a job with its lease, or an outcome without them."""

    job: Job | None
    lease: Lease | None
    outcome: Annotated[str, Sql("c.outcome")]
    claimant: Annotated[str | None, Sql("c.claimant")]


@dataclass(frozen=True)
class ClaimResult:
    """The result of a claim.

    Attributes:
        leases: The new leases with their jobs, in the order in which they were claimed.
        again: Whether the claim was inconclusive: nothing was found, and nothing shows that no job waits.
        refusal: Why the worker was left out: `StaleLease` or `WorkerLocked`. Not raised if others claimed with it.
    """

    leases: Sequence[Lease]
    again: bool = False
    refusal: StaleLease | WorkerLocked | None = None


@dataclass(frozen=True)
class Claimant:
    """A worker that claims.

    Attributes:
        worker: The worker.
        session: The ULID of its process, or empty.
        lease_ulid: The id of the lease, for a claim of one job. None for a new id.
    """

    worker: Worker
    session: str = ""
    lease_ulid: str | None = None


_REFUSALS: Final[dict[str, Callable[[], StaleLease | WorkerLocked]]] = {
    "replaced": lambda: StaleLease("lease_ended"),
    "locked": WorkerLocked,
}
_CLAIM = PreparedQuery(
    ClaimedRow,
    "CROSS JOIN LATERAL (SELECT (c.lease).*) lease",
    source="claim(%s::bigint[], %s::text[], %s, %s::text[], %s::text[], %s, %s::text[], %s, %s, %s::text[], "
    "%s::text[], %s::timestamptz) c CROSS JOIN LATERAL (SELECT (c.job).*) t",
    without=UNREAD_JOB_FIELDS,
)


def claim_for_each(
    claimants: Sequence[Claimant],
    offer: Offer,
    *,
    limit: int,
    acknowledge: bool,
    now: datetime | None = None,
) -> list[ClaimResult]:
    """Lease up to `limit` of the next jobs for this offer to each of several workers, by one statement.

    Args:
        claimants: The workers, each once. Their rows are locked until the transaction ends. Only a single worker waits
            for its row.
        offer: The offer of all of them, which is stored if it changed.
        limit: The maximum number of jobs of a worker; 0 stores sessions and offers only.
        acknowledge: Whether the leases are only granted until the workers acknowledge them.
        now: Timestamp of the leases; by default the time of the database.

    Returns:
        A result for each worker.
    """
    number = limit * len(claimants)
    chosen = [claimant.lease_ulid for claimant in claimants if claimant.lease_ulid is not None]
    rows = _CLAIM.all(
        [claimant.worker.pk for claimant in claimants],
        [claimant.session for claimant in claimants],
        *_offer_values(offer),
        limit,
        acknowledge,
        chosen or new_ids("rtl", number),
        new_ids("evt", 2 * number),
        now,
    )
    workers = {claimant.worker.worker_id: claimant.worker for claimant in claimants}
    leases: dict[str, list[Lease]] = {name: [] for name in workers}
    for row in rows:
        if row.job is not None and row.lease is not None:
            row.lease.job, row.lease.worker = row.job, workers[row.lease.worker_id]
            leases[row.lease.worker_id].append(row.lease)
    refusals = {row.claimant: _REFUSALS[row.outcome]() for row in rows if row.outcome in _REFUSALS}
    again = any(row.outcome == "again" for row in rows)
    return [
        ClaimResult(found, again=again and not found and name not in refusals, refusal=refusals.get(name))
        for name, found in leases.items()
    ]


def claim_jobs(
    worker: Worker,
    offer: Offer,
    *,
    limit: int,
    acknowledge: bool,
    session: str = "",
    lease_ulid: str | None = None,
    now: datetime | None = None,
) -> ClaimResult:
    """Lease up to `limit` of the next jobs for this offer to one worker; see `claim_for_each` and `Claimant`.

    Raises:
        StaleLease: A newer process of the worker has replaced this session.
    """
    claimant = Claimant(worker, session, lease_ulid)
    (result,) = claim_for_each([claimant], offer, limit=limit, acknowledge=acknowledge, now=now)
    if result.refusal is not None:
        raise result.refusal
    return result


def _offer_values(offer: Offer) -> list[Any]:
    return [offer.pool, sorted(offer.job_types), sorted(offer.offers), offer.isolation, offer.isolations]


@dataclass
class AttachedClaim:
    """A claim of one job that the statement of a unit of work makes after its changes: see `write_and_claim`.

    Attributes:
        worker: The worker.
        offer: Its offer.
        acknowledge: Whether the lease is only granted until the worker acknowledges it.
        session: The ULID of the worker's process, or empty.
        lease_ulid: The id of the new lease.
        now: Timestamp of the lease; by default the time of the database.
        lease: The new lease with its job. None before the unit of work is written, and if the claim found nothing.
        is_separate: The claim needs an own statement. The job that ended holds slots of limits or is queued again,
            or the claim was inconclusive.
    """

    worker: Worker
    offer: Offer
    acknowledge: bool
    session: str
    lease_ulid: str
    now: datetime | None = None
    lease: Lease | None = None
    is_separate: bool = False

    def values(self) -> list[Any]:
        """Return the arguments of `write_and_claim` after those of `write_changes`."""
        claim = [self.acknowledge, self.lease_ulid, new_ids("evt", 2), self.now]
        return [self.worker.pk, self.session, *_offer_values(self.offer), *claim]

    def receive(self, outcome: str | None, job: Job | None, lease: Lease | None) -> None:
        """Keep the result of the claim."""
        self.is_separate = outcome in {"separate", "again"}
        if job is not None and lease is not None:
            lease.job, lease.worker, self.lease = job, self.worker, lease
