"""Periodic tasks of scheduling: removal of what has expired, aging, breakers, plans, shares of fair pools."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db.models import Exists, Min, OuterRef, Q

from leases.models import Breaker, BreakerState, Limit, LimitSlot
from leases.scheduling import periodic
from leases.scheduling.fair_share import pools_without_a_share
from leases.scheduling.plan_limits import organizations_with_changed_priority, organizations_with_stale_plan
from orchestrator.core.row_batches import RowRunner
from orchestrator.incidents import breakers, incident_mode
from orchestrator.incidents.breakers import COUNTED
from orchestrator.incidents.models import IncidentMode
from orchestrator.limits import job_limits
from orchestrator.services import pools, priority, tenants
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

MAX_ROWS = 200
# Longer than a round and an operation may take: earlier failures were evaluated then.
LATELY = timedelta(seconds=30)
ONCE: tuple[dict[str, Any], ...] = ({},)


def sweep_scheduling(*, now: datetime | None = None, thorough: bool = True) -> None:
    """Do everything that is due, once. Each piece is a transaction of its own, and one that fails stops no other.

    Args:
        now: Time for deadlines; the database's time by default.
        thorough: Include the tasks that read every queue and organization, and that can wait some seconds.
    """
    tasks = RowRunner()
    for task in (*EVERY_ROUND, *(SLOW if thorough else ())):
        tasks.each(partial(task, RowRunner()), ONCE, now=now)


def advance_lanes(rows: RowRunner, *, now: datetime | None = None) -> int:  # noqa: ARG001 as every task
    """Move the bounds of lanes that claims had no time to move."""
    return rows.each(periodic.advance_cursor, ({"lane": pk} for pk in periodic.stale_lanes()))


def activate_due_queues(rows: RowRunner, *, now: datetime | None = None) -> int:  # noqa: ARG001 as every task
    """Activate the queues whose pause or throttle has ended."""
    return periodic.activate_due()


def notify_throttled_pools(rows: RowRunner, *, now: datetime | None = None) -> None:  # noqa: ARG001 as every task
    """Wake the workers of pools in which a rate lets a job start again."""
    periodic.notify_throttled_pools()


def remove_expired_limits(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Remove pauses and throttles whose time has passed."""
    over = Limit.objects.filter(until__lte=now or database_now()).exclude(pk__in=rows.suspended("limit_id"))
    keys = list(over.values_list("pk", flat=True)[:MAX_ROWS])
    return rows.each(job_limits.remove_expired, ({"limit_id": pk} for pk in keys), now=now)


def evaluate_breakers(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Open, half-open or close the circuit breakers for which that is due."""
    # A breaker whose evaluation has failed is skipped by its runner, and takes the place of no other one.
    limit = MAX_ROWS + len(rows.suspended("job_type"))
    return rows.each(breakers.evaluate_breaker, _breakers(now or database_now(), limit), now=now)


def apply_aging(rows: RowRunner, *, now: datetime | None = None) -> int:  # noqa: ARG001 as every task
    """Raise the priority of queues by the time they have waited."""
    return periodic.apply_aging()


def sync_plan_limits(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Bring the limits of organizations in line with their plans."""
    return rows.each(
        tenants.sync_plan, ({"org_slug": slug} for slug in organizations_with_stale_plan(limit=MAX_ROWS)), now=now
    )


def sync_shares(rows: RowRunner, *, now: datetime | None = None) -> int:  # noqa: ARG001 as every task
    """Give the organizations of fair pools the shares that they lack."""
    return rows.each(pools.keep_shares, ({"pool": slug} for slug in pools_without_a_share(limit=MAX_ROWS)))


def raise_plan_priorities(rows: RowRunner, *, now: datetime | None = None) -> int:  # noqa: ARG001 as every task
    """Raise the priority of waiting jobs whose organization was claimed by a process that ended before it did so."""
    return rows.each(
        priority.raise_queued_priority, ({"organization": row} for row in organizations_with_changed_priority())
    )


def remove_expired_incident_modes(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Remove incident modes whose end has passed."""
    over = IncidentMode.objects.filter(until__lte=now or database_now()).values_list("org_slug", flat=True)[:MAX_ROWS]
    return rows.each(incident_mode.remove_expired_incident_mode, ({"org_slug": slug} for slug in list(over)), now=now)


EVERY_ROUND = (advance_lanes, activate_due_queues, notify_throttled_pools, remove_expired_limits, evaluate_breakers)
SLOW = (apply_aging, sync_plan_limits, sync_shares, raise_plan_priorities, remove_expired_incident_modes)


def _breakers(now: datetime, limit: int) -> list[dict[str, Any]]:
    """Return the breakers that are due, and the closed ones whose jobs failed recently.

    At most `limit` of either kind, the oldest first.

    A half-open breaker is due when its single job has ended. An organization that submits no job keeps it half-open.
    """
    has_started = Exists(Limit.objects.filter(pk=OuterRef("limit_id"), max_active=0))
    is_running = Exists(LimitSlot.objects.filter(limit_id=OuterRef("limit_id"), job_id__isnull=False))
    is_cooled = Q(state=BreakerState.OPEN, cool_until__lte=now)
    due = Breaker.objects.filter(is_cooled | Q(has_started, ~Q(is_running), state=BreakerState.HALF_OPEN))
    due = due.order_by("cool_until", "pk")
    counted = Q(failure_class__in=COUNTED) | Q(job_type__in=settings.BREAKER["job_failures"])
    failed = Job.objects.filter(counted, state=JobState.FAILED, finished_at__gt=now - LATELY)
    is_own = {"org_slug": OuterRef("org_slug"), "job_type": OuterRef("job_type")}
    failed = failed.exclude(Exists(Breaker.objects.exclude(state=BreakerState.CLOSED).filter(**is_own)))
    pairs = failed.values("org_slug", "job_type").annotate(since=Min("finished_at")).order_by("since")
    names = (due.values("org_slug", "job_type"), pairs)
    return [{"org_slug": row["org_slug"], "job_type": row["job_type"]} for rows in names for row in rows[:limit]]
