"""Why jobs wait and where they stand: the same answer for one job and for a page of them, in as many queries."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.selectors.pending_reasons import limits, workers
from orchestrator.selectors.pending_reasons.dependencies import dependencies_of
from orchestrator.selectors.pending_reasons.limits import BlockingLimit
from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason, are
from orchestrator.selectors.pending_reasons.workers import WorkerMatch
from orchestrator.selectors.queue_position import COUNTED, queue_positions
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

# The reason that holds longest comes first. A limit comes before the lack of a worker that is alive: a worker that is
# started would not get the job. What no worker of the pool offers comes before a limit: no end of a job changes that.
_BEFORE_WORKERS = (ReasonCode.POOL_PAUSED, ReasonCode.BREAKER_OPEN)
_AFTER_WORKERS = (ReasonCode.ORGANIZATION_LIMIT, ReasonCode.SOURCE_ADDRESS_LIMIT, ReasonCode.RATE_LIMITED)


@dataclass(frozen=True)
class PendingState:
    """`place` 1 is next; both are None for a job that does not wait."""

    reason: WaitReason | None = None
    place: int | None = None


def pending_for(jobs: Sequence[Job]) -> dict[int, PendingState]:
    """By the jobs' keys. At most five queries for any number of jobs, none where none waits."""
    queued = [job for job in jobs if job.state == JobState.QUEUED]
    places, fits, held = queue_positions(queued), workers.fits_of(queued), limits.limits_of(queued)
    found = {
        job.pk: PendingState(_reason(fits.get(job.pk), held.get(job.lane_id or 0, []), places[job.pk]), places[job.pk])
        for job in queued
    }
    blocked = dependencies_of([job for job in jobs if job.state == JobState.BLOCKED])
    found |= {key: PendingState(reason) for key, reason in blocked.items()}
    return {job.pk: found.get(job.pk, PendingState()) for job in jobs}


def _reason(fit: WorkerMatch | None, held: list[BlockingLimit], place: int) -> WaitReason | None:
    """None where it has been taken since the row was read."""
    if fit is None:
        return None
    return (
        _held_by(held, _BEFORE_WORKERS)
        or (workers.no_match_reason(fit) if fit.alive else None)
        or _held_by(held, _AFTER_WORKERS)
        or workers.no_match_reason(fit)
        or _turn(fit, place)
    )


def _held_by(held: list[BlockingLimit], codes: Sequence[ReasonCode]) -> WaitReason | None:
    fitting = [holding for holding in held if holding.code in codes]
    return limits.reason_of(min(fitting, key=lambda one: codes.index(one.code))) if fitting else None


def _turn(fit: WorkerMatch, place: int) -> WaitReason:
    """Nothing holds it but those before it, and those that run."""
    facts = fit.facts | {"position": place}
    if place == 1 and not fit.has_room:
        words = f"It is next; {are(fit.fitting, 'worker', 'that could run it')} alive in the pool {fit.pool}, and busy."
        return WaitReason(ReasonCode.ALL_WORKERS_BUSY, words, facts)
    number = "It is next" if place == 1 else f"Number {place}{' or later' * (place >= COUNTED)}"
    words = f"{number} in the queue of the pool {fit.pool}; {are(fit.fitting, 'worker', 'that could run it')} alive."
    return WaitReason(ReasonCode.BEHIND, words, facts)
