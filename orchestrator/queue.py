"""A waiting job's place in its pool's queue."""

from django.db.models import Q

from runtime_jobs.models import Job
from runtime_jobs.states import JobState

COUNTED = 1000  # beyond that the exact number helps nobody, and counting costs


def position(job: Job) -> int | None:
    """1 is next. None for a job that does not wait. At most COUNTED."""
    if job.state != JobState.QUEUED:
        return None
    older = Q(created_at__lt=job.created_at) | Q(created_at=job.created_at, id__lt=job.id)
    ahead = Job.objects.queued().filter(Q(priority__gt=job.priority) | Q(priority=job.priority) & older, pool=job.pool)
    return min(COUNTED, ahead.order_by()[: COUNTED - 1].count() + 1)
