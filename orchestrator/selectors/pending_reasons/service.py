"""Returns why jobs wait and their positions in the queue: for a page of jobs with as many queries as for one."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Exists, OuterRef

from orchestrator.selectors.pending_reasons import limits, workers
from orchestrator.selectors.pending_reasons.limits import BlockingLimit
from orchestrator.selectors.pending_reasons.queries import fetch
from orchestrator.selectors.pending_reasons.reason import (
    ReasonCode,
    WaitReason,
    are,
    join_words,
    late_result_reason,
    several,
)
from orchestrator.selectors.pending_reasons.workers import WorkerMatch
from runtime_jobs.models import Dependency, Job, RunHold, WorkflowRun
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import FINAL_STATES, JobState

MAX_POSITION = 1000  # beyond it the exact number is of no use, and counting takes time

# The reason that lasts longest comes first. A limit comes before the lack of an online worker: a worker that is started
# would not get the job. A requirement that no worker of the pool offers comes before a limit: no end of a job helps.
_BEFORE_WORKERS = (ReasonCode.POOL_PAUSED, ReasonCode.BREAKER_OPEN)
_AFTER_WORKERS = (ReasonCode.ORGANIZATION_LIMIT, ReasonCode.SOURCE_ADDRESS_LIMIT, ReasonCode.RATE_LIMITED)


@dataclass(frozen=True)
class PendingState:
    """The reason why a job waits, and its position in the queue from 1. Both are None for a job that does not wait."""

    reason: WaitReason | None = None
    place: int | None = None


class QueuePosition(NamedTuple):
    """The position of a job in the queue of its pool."""

    job_id: int
    place: int


def pending_for(jobs: Sequence[Job]) -> dict[int, PendingState]:
    """Return why these jobs wait by the jobs' keys, with at most four queries, and none if no job waits.

    Another query finds runs of workflows that are held, and one the hardware specs that no worker offers.
    """
    queued = [job for job in jobs if job.state == JobState.QUEUED]
    positions, matches, blocking = queue_positions(queued), workers.matches_of(queued), limits.limits_of(queued)
    found = {
        job.pk: PendingState(
            _reason(matches.get(job.pk), blocking.get(job.lane_id or 0, []), positions[job.pk]), positions[job.pk]
        )
        for job in queued
    }
    blocked = _dependency_reasons([job for job in jobs if job.state == JobState.BLOCKED])
    found |= {key: PendingState(reason) for key, reason in blocked.items()}
    found |= {job.pk: PendingState(late_result_reason(job)) for job in jobs if job.state == JobState.LOST}
    return {job.pk: found.get(job.pk, PendingState()) for job in jobs}


def queue_positions(jobs: Sequence[Job]) -> dict[int, int]:
    """Return the positions of queued jobs by the jobs' keys, with one query.

    Position 1 is claimed next. `MAX_POSITION` means that position or a later one.
    """
    if not jobs:
        return {}
    pools = sorted({job.pool for job in jobs})
    rows = fetch("places", QueuePosition, jobs=[job.pk for job in jobs], pools=pools, counted=MAX_POSITION - 1)
    positions = dict(rows)
    return {job.pk: positions.get(job.pk, MAX_POSITION) for job in jobs}


def _dependency_reasons(jobs: Sequence[Job]) -> dict[int, WaitReason]:
    """Return why blocked jobs wait by the jobs' keys, with at most two queries."""
    if not jobs:
        return {}
    unfinished = Job.objects.filter(root_job_ulid=OuterRef("on__job_ulid")).exclude(state__in=FINAL_STATES)
    edges = Dependency.objects.filter(Exists(unfinished), job__job_ulid__in={job.root_job_ulid for job in jobs})
    roots = defaultdict(list)
    for job_ulid, on in edges.order_by("pk").values_list("job__job_ulid", "on__job_ulid"):
        roots[job_ulid].append(on)
    held = _hold_reasons(jobs)
    return {job.pk: held.get(job.batch_id) or _dependency_reason(roots[job.root_job_ulid]) for job in jobs}


def _hold_reasons(jobs: Sequence[Job]) -> dict[int | None, WaitReason]:
    """Return why the workflow runs of jobs are held, by the keys of their batches, with at most one query."""
    in_runs = (job.batch_id for job in jobs if JOB_TYPES[job.job_type].in_workflow_runs)
    batch_ids = {batch_id for batch_id in in_runs if batch_id is not None}
    if not batch_ids:
        return {}
    runs = WorkflowRun.objects.filter(batch_id__in=batch_ids).exclude(hold="")
    rows = runs.values_list("batch_id", "hold", "concurrency_group")
    return {batch_id: _hold_reason(hold, group) for batch_id, hold, group in rows}


def _hold_reason(hold: str, group: str) -> WaitReason:
    if hold == RunHold.APPROVAL:
        return WaitReason(ReasonCode.APPROVAL, "Its run waits for an approval: the commit is that of a fork.")
    message = f"Its run waits for older runs of the concurrency group {group}."
    return WaitReason(ReasonCode.CONCURRENCY_GROUP, message, {"concurrency_group": group})


def _dependency_reason(roots: list[str]) -> WaitReason:
    message = (
        f"It starts after {join_words(roots)}." if roots else "All its dependencies have ended; it is queued soon."
    )
    return WaitReason(ReasonCode.DEPENDS_ON, message, {"depends_on": roots})


def _reason(match: WorkerMatch | None, blocking: list[BlockingLimit], position: int) -> WaitReason | None:
    """Return the first reason, or None if the job was claimed after its row was read."""
    if match is None:
        return None
    return (
        _limit_reason(blocking, _BEFORE_WORKERS)
        or (workers.no_match_reason(match) if match.alive else None)
        or _limit_reason(blocking, _AFTER_WORKERS)
        or workers.no_match_reason(match)
        or _queue_reason(match, position)
    )


def _limit_reason(blocking: list[BlockingLimit], codes: Sequence[ReasonCode]) -> WaitReason | None:
    matching = [limit for limit in blocking if limit.code in codes]
    return limits.reason_of(min(matching, key=lambda limit: codes.index(limit.code))) if matching else None


def _queue_reason(match: WorkerMatch, position: int) -> WaitReason:
    """Return the reason of a job that only waits for jobs before it and for running jobs."""
    facts = match.facts | {"position": position}
    if position == 1 and not match.has_room:
        count = several(match.fitting, "matching worker")
        busy = f"{'all ' * (match.fitting > 1)}busy"
        message = f"Next in the queue of the pool {match.pool}; {count} online, {busy}."
        return WaitReason(ReasonCode.ALL_WORKERS_BUSY, message, facts)
    number = "Next" if position == 1 else f"Number {position}{' or later' * (position >= MAX_POSITION)}"
    message = f"{number} in the queue of the pool {match.pool}; {are(match.fitting, 'matching worker')} online."
    return WaitReason(ReasonCode.BEHIND, message, facts)
