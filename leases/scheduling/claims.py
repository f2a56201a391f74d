"""The claim: choose the jobs that a worker runs next. Besides the services, only this SQL writes a job's state."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from django.db import connection

from leases.scheduling.periodic import activate_due
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import PreparedQuery, Sql

ISOLATION_LEVELS = ("none", "restricted", "namespaces")  # weakest first

_CLAIM = """SELECT * FROM claim_jobs_v1(
    %s,
    ARRAY(SELECT id FROM lane_profiles WHERE job_type = ANY (%s::text[]) AND least_isolation = ANY (%s::text[])
             AND requirements <@ %s::varchar[]),
    %s, %s)"""
_FINALIZE = """SELECT finalize_claim_v1(
    %s::bigint[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"""


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
class ClaimResult:
    """The result of a claim, with the findings to record.

    Attributes:
        jobs: The claimed jobs, in the order in which they were claimed.
        rows: The rows of `claim_jobs_v1`, which `settle` evaluates.
        claimed_at: The database's clock after the last lock of a job; None without jobs.
    """

    jobs: list[Job]
    rows: Sequence[tuple[str, int, int]]
    claimed_at: datetime | None = None

    @property
    def is_due(self) -> bool:
        """Whether nothing was found, but a queue or lane that was blocked for a time is due."""
        return any(kind == "due" for kind, _, _ in self.rows)

    @property
    def again(self) -> bool:
        """Whether the claim was inconclusive: nothing was found, and nothing shows that no job waits."""
        return any(kind in {"due", "again"} for kind, _, _ in self.rows)

    def settle(self) -> None:
        """Record what was found to be empty or full: the last statement of the claim."""
        if self.is_due:
            activate_due()
            return
        if not self.rows:
            return
        lanes = [key for kind, key, _ in self.rows if kind == "lane"]
        found = [sum(1 for kind, _, lane in self.rows if kind == "job" and lane == key) for key in lanes]
        full_lanes = [(key, limit) for kind, key, limit in self.rows if kind == "lane_full"]
        full_queues = [(key, limit) for kind, key, limit in self.rows if kind == "queue_full"]
        with connection.cursor() as cursor:
            cursor.execute(_FINALIZE, [lanes, found, *_columns(full_lanes), *_columns(full_queues)])


@dataclass(frozen=True)
class ClaimedRow:
    """A claimed job, and the database's clock after the lock that the claim has taken on it."""

    job: Job
    now: Annotated[datetime, Sql("clock_timestamp()")]


_CLAIMED = PreparedQuery(ClaimedRow, "WHERE t.id = ANY (%s)")


def claim_jobs(offer: Offer, *, limit: int = 1) -> ClaimResult:
    """Move up to `limit` of the next jobs for this offer to `leased` under new fences, and return them.

    The last statement of the transaction must be `settle` of the result.
    """
    matching: list[Any] = [list(offer.job_types), offer.isolations, sorted(offer.offers)]
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, [offer.pool, *matching, offer.worker_id, limit])
        rows = cursor.fetchall()
    ids = [key for kind, key, _ in rows if kind == "job"]
    claimed = _read_claimed(ids)
    return ClaimResult([row.job for row in claimed], rows, max((row.now for row in claimed), default=None))


def _read_claimed(ids: list[int]) -> list[ClaimedRow]:
    if not ids:
        return []
    place = {key: number for number, key in enumerate(ids)}
    return sorted(_CLAIMED.all(ids), key=lambda row: place[row.job.pk])


def _columns(pairs: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    rows = list(pairs)
    return [first for first, _ in rows], [second for _, second in rows]
