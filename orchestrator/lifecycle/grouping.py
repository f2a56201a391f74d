"""Concurrency groups: of the jobs that name one key, one runs at a time. What becomes of the others is their word."""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import models

from leases.guards import JOBS_OF_KEY, guard
from orchestrator.lifecycle import moves
from orchestrator.lifecycle.cancelling import cancel_locked
from runtime_jobs.clock import database_time
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.states import FINAL, CancelReason


class WhenBusy(models.TextChoices):
    QUEUE = "queue"  # the new job waits its turn
    CANCEL_OLDER = "cancel_older"  # those before it are canceled, waiting or running
    DROP_NEW = "drop_new"  # the new job is canceled at once


@dataclass(frozen=True)
class Group:
    """The jobs of an organization that name one key; `key` has 1 to 200 characters."""

    key: str
    when_busy: WhenBusy = WhenBusy.QUEUE


def make_way(job: Job, group: Group, *, at: datetime, by: Actor) -> bool:
    """Cancel the older ones where the group says so. Returns whether the new job shall be dropped instead."""
    deadline_seconds = settings.CANCEL_DEADLINE_SECONDS
    guard(JOBS_OF_KEY, f"{job.org_slug}/{group.key}")  # of two that come at once the later one sees the earlier
    older = Job.objects.filter(org_slug=job.org_slug, concurrency_key=group.key).exclude(state__in=FINAL)
    if group.when_busy == WhenBusy.CANCEL_OLDER:
        locked = list(older.locked().order_by("pk"))
        since = max(at, database_time())  # they may have come while this one waited for the guard
        for one in locked:
            cancel_locked(one, at=since, by=by, deadline_seconds=deadline_seconds, reason=CancelReason.SUPERSEDED)
    return group.when_busy == WhenBusy.DROP_NEW and older.exists()


def drop(job: Job, *, at: datetime, by: Actor) -> Job:
    """End a job that has just come in: another one of its group is there."""
    cancel_locked(job, at=at, by=by, deadline_seconds=0, reason=CancelReason.SUPERSEDED)
    return moves.store(job, at)
