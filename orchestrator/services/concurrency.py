"""Concurrency groups: of the jobs of an organization with the same key, one runs at a time."""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import models

from leases.advisory_locks import JOBS_OF_KEY, advisory_xact_lock
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.services import transitions
from orchestrator.services.cancellation import cancel_locked
from runtime_jobs.db_time import database_now
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import JobQuerySet
from runtime_jobs.states import FINAL_STATES, CancelReason


class OnConflict(models.TextChoices):
    """The policy for a new job whose group has other open jobs."""

    QUEUE = "queue"  # the new job waits
    CANCEL_OLDER = "cancel_older"  # the older jobs are canceled, waiting or running
    DROP_NEW = "drop_new"  # the new job is canceled at once


@dataclass(frozen=True)
class ConcurrencyGroup:
    """The concurrency group of a job.

    Attributes:
        key: 1 to 200 characters, unique within the organization.
        when_busy: The policy if the group has other open jobs.
    """

    key: str
    when_busy: OnConflict = OnConflict.QUEUE


def apply_conflict_policy(uow: UnitOfWork, job: Job, group: ConcurrencyGroup, *, now: datetime, actor: Actor) -> bool:
    """Cancel the older jobs of the group if its policy says so.

    Returns:
        Whether the new job must be canceled instead.
    """
    # Of two submits at once, the later one finds the job of the earlier one.
    advisory_xact_lock(JOBS_OF_KEY, f"{job.org_slug}/{group.key}")
    older = Job.objects.filter(org_slug=job.org_slug, concurrency_key=group.key).exclude(state__in=FINAL_STATES)
    if group.when_busy == OnConflict.CANCEL_OLDER:
        _cancel_all(uow, older, now=now, actor=actor)
    return group.when_busy == OnConflict.DROP_NEW and older.exists()


def _cancel_all(uow: UnitOfWork, jobs: JobQuerySet, *, now: datetime, actor: Actor) -> None:
    """Cancel the open jobs of a group until none is left.

    While a lock is waited for, its job may fail. Its automatic retry is a row that the query before could not see.
    """
    seen: set[int] = set()
    while keys := set(jobs.exclude(pk__in=seen).values_list("pk", flat=True)):
        locked = list(jobs.locked().filter(pk__in=keys).order_by("pk"))
        canceled_at = max(now, database_now())  # they may have been submitted while this one waited for the lock
        for job in locked:
            cancel_locked(
                uow,
                job,
                now=canceled_at,
                actor=actor,
                deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
                reason=CancelReason.SUPERSEDED,
            )
        seen |= keys


def cancel_new(uow: UnitOfWork, job: Job, *, now: datetime, actor: Actor) -> Job:
    """Cancel a job that was just queued, because its group has another open job."""
    cancel_locked(uow, job, now=now, actor=actor, deadline_seconds=0, reason=CancelReason.SUPERSEDED)
    return transitions.mark_changed(uow, job, now)
