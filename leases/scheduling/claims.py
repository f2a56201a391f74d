"""Who runs what next. The one place besides the verbs that writes a job's state: the claim's SQL."""

from dataclasses import dataclass

from leases.scheduling import lanes
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import PreparedQuery

ISOLATION_LEVELS = ("none", "restricted", "namespaces")  # weakest first


@dataclass(frozen=True)
class Offer:
    """What a worker offers with a claim: the pool, the types of jobs it understands, labels and capabilities in one
    set, and its isolation level."""

    worker_id: str
    pool: str
    job_types: tuple[str, ...]
    offers: frozenset[str]
    isolation: str

    @property
    def isolations(self) -> list[str]:
        """The least isolation that a job may ask for and still be served."""
        return list(ISOLATION_LEVELS[: ISOLATION_LEVELS.index(self.isolation) + 1])


_TAKEN = PreparedQuery(Job, "WHERE t.id = ANY (%s)", computed={"at": "clock_timestamp()"})


def claim_jobs(offer: Offer, *, most: int = 1) -> tuple[list[Job], lanes.ClaimResult]:
    """Move up to `most` of the next jobs for this offer to `leased` under new fences, and return them.

    Each row comes with `at`, the database's clock after its lock. What was taken has to be settled last."""
    fitting = lanes.ProfileFilter(list(offer.job_types), offer.isolations, sorted(offer.offers))
    taken = lanes.claim(pool=offer.pool, fitting=fitting, worker_id=offer.worker_id, most=most)
    return _rows(taken.jobs), taken


def _rows(ids: list[int]) -> list[Job]:
    if not ids:
        return []
    place = {key: number for number, key in enumerate(ids)}
    return sorted(_TAKEN.all(ids), key=lambda job: place[job.pk])
