"""A waiting job's priority changes: its organization's plan did, or an operator lifts it."""

from datetime import datetime

from leases.lanes import lane_of
from orchestrator.lifecycle import moves
from orchestrator.lifecycle.transaction import ending, verb
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.states import JobState


@verb
def prioritize(*, job_ulid: str, priority: int, by: Actor, reason: str, now: datetime | None = None) -> Job | None:
    """Let a waiting job wait with another priority, at the place that its age gives it there. None: it waits no more.

    Raises NotFound."""
    job, at = moves.lock_job(job_ulid, now=now)
    if job.state != JobState.QUEUED or job.priority == priority:
        return None
    before, job.priority = job.priority, priority
    job.lane_id = lane_of(job)
    ending().entered.append((job.pk, job.lane_id, job.created_at))
    moves.note(job, "job.prioritized", at=at, by=by, before=before, priority=priority, reason=reason)
    job.save(update_fields=["priority", "lane_id", "limited_by_address"])
    return moves.store(job, at)
