"""Concurrency groups: of the jobs that name one key, one runs at a time. What becomes of the others is their word."""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import models

from leases.advisory_locks import JOBS_OF_KEY, advisory_xact_lock
from orchestrator.services import transitions
from orchestrator.services.cancellation import cancel_locked
from runtime_jobs.db_time import database_now
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.states import FINAL_STATES, CancelReason


class OnConflict(models.TextChoices):
    QUEUE = "queue"  # the new job waits its turn
    CANCEL_OLDER = "cancel_older"  # those before it are canceled, waiting or running
    DROP_NEW = "drop_new"  # the new job is canceled at once


@dataclass(frozen=True)
class ConcurrencyGroup:
    """The jobs of an organization that name one key; `key` has 1 to 200 characters."""

    key: str
    when_busy: OnConflict = OnConflict.QUEUE


def apply_conflict_policy(job: Job, group: ConcurrencyGroup, *, at: datetime, actor: Actor) -> bool:
    """Cancel the older ones where the group says so. Returns whether the new job shall be dropped instead."""
    deadline_seconds = settings.CANCEL_DEADLINE_SECONDS
    advisory_xact_lock(
        JOBS_OF_KEY, f"{job.org_slug}/{group.key}"
    )  # of two that come at once the later one sees the earlier
    older = Job.objects.filter(org_slug=job.org_slug, concurrency_key=group.key).exclude(state__in=FINAL_STATES)
    if group.when_busy == OnConflict.CANCEL_OLDER:
        locked = list(older.locked().order_by("pk"))
        since = max(at, database_now())  # they may have come while this one waited for the guard
        for one in locked:
            cancel_locked(one, at=since, actor=actor, deadline_seconds=deadline_seconds, reason=CancelReason.SUPERSEDED)
    return group.when_busy == OnConflict.DROP_NEW and older.exists()


def cancel_new(job: Job, *, at: datetime, actor: Actor) -> Job:
    """End a job that has just come in: another one of its group is there."""
    cancel_locked(job, at=at, actor=actor, deadline_seconds=0, reason=CancelReason.SUPERSEDED)
    return transitions.mark_dirty(job, at)
