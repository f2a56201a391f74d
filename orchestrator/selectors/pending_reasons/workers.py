"""Whether any worker could take a waiting job, and what they lack if not."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from leases.scheduling.claims import ISOLATION_LEVELS
from orchestrator.selectors.pending_reasons.queries import fetch
from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason, are, listing
from runtime_jobs.models import Job

SILENT_AFTER = timedelta(seconds=60)  # a worker that claims or holds is heard every few seconds


class WorkerMatch(NamedTuple):
    """How the workers of a pool fit one sort of job. `alive`: those heard lately; `fitting`: those of them that could
    run it; `lacks`: the requirements that the nearest one does not offer."""

    jobs: list[int]
    pool: str
    requirements: list[str]
    least_isolation: str
    job_type: str
    alive: int
    fitting: int
    has_room: bool
    lacks: list[str]
    too_open: bool
    other_type: bool

    @property
    def missing(self) -> list[dict[str, str]]:
        found = [{"kind": "requirement", "name": name} for name in self.lacks]
        if self.too_open:
            found.append({"kind": "isolation", "name": self.least_isolation})
        if self.other_type:
            found.append({"kind": "job_type", "name": self.job_type})
        return found

    @property
    def facts(self) -> dict[str, Any]:
        return {"pool": self.pool, "workers_alive": self.fitting}


def fits_of(jobs: Sequence[Job]) -> dict[int, WorkerMatch]:
    """By the jobs' keys, in one query for all of them."""
    if not jobs:
        return {}
    keys = [job.pk for job in jobs]
    found = fetch("workers", WorkerMatch, jobs=keys, silent=SILENT_AFTER, levels=list(ISOLATION_LEVELS))
    return {key: fit for fit in found for key in fit.jobs}


def no_match_reason(fit: WorkerMatch) -> WaitReason | None:
    """A reason where no worker that is alive could ever take it."""
    if fit.fitting:
        return None
    facts = {"pool": fit.pool, "workers_alive": fit.alive, "missing": fit.missing}
    return WaitReason(ReasonCode.NO_MATCHING_WORKER, _nobody(fit), facts)


def _nobody(fit: WorkerMatch) -> str:
    if not fit.alive:
        return f"No worker is alive in the pool {fit.pool}."
    if not fit.missing:
        return f"Each worker of the pool {fit.pool} that fits has given it back: its machine could not run it."
    names = [_KINDS.get(one["kind"], "{}").format(one["name"]) for one in fit.missing]
    return f"No worker of the pool {fit.pool} offers {listing(names)}; {are(fit.alive, 'worker')} alive."


_KINDS = {"isolation": "isolation {}", "job_type": "jobs of type {}"}
