"""Who runs what next. The one place besides the verbs that writes a job's state: the claim is one SQL statement."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runtime_jobs.models import Job

LEVELS = ("none", "restricted", "namespaces")  # weakest first


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
        return list(LEVELS[: LEVELS.index(self.isolation) + 1])


def take_next(offer: Offer) -> Job | None:
    """Lock the next job for this offer and move it to `leased` under a new fence; None when there is none.

    The row comes with `at`, the database's clock after its lock."""
    parameters = {
        "pool": offer.pool,
        "job_types": list(offer.job_types),
        "isolations": offer.isolations,
        "offers": sorted(offer.offers),
        "worker_id": offer.worker_id,
    }
    return next(iter(Job.objects.raw(_sql("claim"), parameters)), None)


@cache
def _sql(name: str) -> str:
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text()
