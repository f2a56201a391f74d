"""The places of waiting jobs in their pools' queues."""

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.selectors.pending_reasons.queries import fetch
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

COUNTED = 1000  # beyond that the exact number helps nobody, and counting costs


class QueuePosition(NamedTuple):
    job_id: int
    place: int


def queue_positions(jobs: Sequence[Job]) -> dict[int, int]:
    """By the keys of those jobs that are queued, in one query: 1 is next, COUNTED is that or later."""
    queued = [job for job in jobs if job.state == JobState.QUEUED]
    if not queued:
        return {}
    pools = sorted({job.pool for job in queued})
    found = dict(fetch("places", QueuePosition, jobs=[job.pk for job in queued], pools=pools, counted=COUNTED - 1))
    return {job.pk: found.get(job.pk, COUNTED) for job in queued}
