"""Compares waiting jobs with the workers of their pools: which could run them, and what the others lack."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from leases.scheduling.claims import ISOLATION_LEVELS
from orchestrator.selectors.pending_reasons.queries import fetch
from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason, are, join_words
from runtime_jobs.models import Job
from runtime_jobs.specs.oci import spec_of_label
from workers.models import HardwareSpec

SILENT_AFTER = timedelta(seconds=60)  # a worker that claims or executes sends a request every few seconds


class WorkerMatch(NamedTuple):
    """The workers of a pool for jobs with the same requirements.

    Attributes:
        jobs: Keys of the jobs.
        pool: The slug of the pool.
        requirements: The required capabilities.
        least_isolation: The minimum isolation.
        job_type: The job type.
        alive: The number of workers that sent a request within `SILENT_AFTER`.
        fitting: The number of these that could run the jobs.
        has_room: Whether one of the fitting workers has free capacity.
        lacks: The requirements that the best worker does not offer.
        too_open: Whether the isolation of the best worker is too weak.
        other_type: Whether the best worker does not run the job type.
        specs: The slugs of the hardware specs among `lacks`, by requirement.
    """

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
    specs: dict[str, str] = {}

    @property
    def missing(self) -> list[dict[str, str]]:
        """Kind and name of each requirement that the best worker does not meet."""
        missing = [{"kind": "requirement", "name": name} for name in self.lacks]
        if self.too_open:
            missing.append({"kind": "isolation", "name": self.least_isolation})
        if self.other_type:
            missing.append({"kind": "job_type", "name": self.job_type})
        return missing

    @property
    def facts(self) -> dict[str, Any]:
        """The pool and the number of fitting workers."""
        return {"pool": self.pool, "workers_alive": self.fitting}


def matches_of(jobs: Sequence[Job]) -> dict[int, WorkerMatch]:
    """Return the workers for these jobs by the jobs' keys, with one query."""
    if not jobs:
        return {}
    keys = [job.pk for job in jobs]
    rows = fetch("workers", WorkerMatch, jobs=keys, silent=SILENT_AFTER, levels=list(ISOLATION_LEVELS))
    specs = _spec_slugs({name for match in rows for name in match.lacks})
    return {key: match._replace(specs=specs) for match in rows for key in match.jobs}


def _spec_slugs(requirements: Iterable[str]) -> dict[str, str]:
    """Return the slugs of hardware specs by the requirements that name them. Without such a requirement: no query."""
    uuids = {uuid: name for name in requirements if (uuid := spec_of_label(name))}
    found = HardwareSpec.objects.filter(uuid__in=uuids).values_list("uuid", "slug") if uuids else ()
    return {uuids[uuid]: slug for uuid, slug in found}


def no_match_reason(match: WorkerMatch) -> WaitReason | None:
    """Return a reason if no worker that is online could run the jobs, else None."""
    if match.fitting:
        return None
    facts = {"pool": match.pool, "workers_alive": match.alive, "missing": match.missing}
    return WaitReason(ReasonCode.NO_MATCHING_WORKER, _no_match_message(match), facts)


def _no_match_message(match: WorkerMatch) -> str:
    if not match.alive:
        return f"No worker is online in the pool {match.pool}."
    if not match.missing:
        return (
            f"Each matching worker of the pool {match.pool} has released the job as unable to run it, or is not ready."
        )
    names = [_describe(entry, match.specs) for entry in match.missing]
    return f"No worker of the pool {match.pool} offers {join_words(names)}; {are(match.alive, 'worker')} online."


def _describe(missing: dict[str, str], specs: Mapping[str, str]) -> str:
    kind, name = missing["kind"], missing["name"]
    if kind == "requirement" and spec_of_label(name):
        return f"the hardware spec {specs.get(name, name)}"
    return _NAMES.get(kind, "{}").format(name)


_NAMES = {"isolation": "isolation {}", "job_type": "jobs of type {}"}
