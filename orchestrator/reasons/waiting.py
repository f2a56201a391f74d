"""Why jobs wait and where they stand: the same answer for one job and for a page of them, in as many queries."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.reasons import limits, workers
from orchestrator.reasons.dependencies import dependencies_of
from orchestrator.reasons.limits import Holding
from orchestrator.reasons.places import COUNTED, places_of
from orchestrator.reasons.reason import Code, Reason, are
from orchestrator.reasons.workers import Fit
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

# The reason that holds longest comes first. A limit comes before the lack of a worker that is alive: a worker that is
# started would not get the job. What no worker of the pool offers comes before a limit: no end of a job changes that.
_BEFORE_WORKERS = (Code.POOL_PAUSED, Code.BREAKER_OPEN)
_AFTER_WORKERS = (Code.ORGANIZATION_LIMIT, Code.SOURCE_ADDRESS_LIMIT, Code.RATE_LIMITED)


@dataclass(frozen=True)
class Waiting:
    """`place` 1 is next; both are None for a job that does not wait."""

    reason: Reason | None = None
    place: int | None = None


def waiting_of(jobs: Sequence[Job]) -> dict[int, Waiting]:
    """By the jobs' keys. At most five queries for any number of jobs, none where none waits."""
    queued = [job for job in jobs if job.state == JobState.QUEUED]
    places, fits, held = places_of(queued), workers.fits_of(queued), limits.limits_of(queued)
    found = {
        job.pk: Waiting(_reason(fits.get(job.pk), held.get(job.lane_id or 0, []), places[job.pk]), places[job.pk])
        for job in queued
    }
    blocked = dependencies_of([job for job in jobs if job.state == JobState.BLOCKED])
    found |= {key: Waiting(reason) for key, reason in blocked.items()}
    return {job.pk: found.get(job.pk, Waiting()) for job in jobs}


def _reason(fit: Fit | None, held: list[Holding], place: int) -> Reason | None:
    """None where it has been taken since the row was read."""
    if fit is None:
        return None
    return (
        _held_by(held, _BEFORE_WORKERS)
        or (workers.nobody_fits(fit) if fit.alive else None)
        or _held_by(held, _AFTER_WORKERS)
        or workers.nobody_fits(fit)
        or _turn(fit, place)
    )


def _held_by(held: list[Holding], codes: Sequence[Code]) -> Reason | None:
    fitting = [holding for holding in held if holding.code in codes]
    return limits.reason_of(min(fitting, key=lambda one: codes.index(one.code))) if fitting else None


def _turn(fit: Fit, place: int) -> Reason:
    """Nothing holds it but those before it, and those that run."""
    facts = fit.facts | {"position": place}
    if place == 1 and not fit.has_room:
        words = f"It is next; {are(fit.fitting, 'worker', 'that could run it')} alive in the pool {fit.pool}, and busy."
        return Reason(Code.ALL_WORKERS_BUSY, words, facts)
    number = "It is next" if place == 1 else f"Number {place}{' or later' * (place >= COUNTED)}"
    words = f"{number} in the queue of the pool {fit.pool}; {are(fit.fitting, 'worker', 'that could run it')} alive."
    return Reason(Code.BEHIND, words, facts)
