"""The clock's part in who runs what next: what is over is lifted, what waits grows older, breakers are attended."""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import Error
from django.db.models import Q

from leases import lanes
from leases.models import Breaker, BreakerState, Limit
from leases.plans import behind_their_plans, with_jobs_to_lift
from orchestrator import lifecycle
from orchestrator.lifecycle.breaking import COUNTED
from runtime_jobs.clock import database_time
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from runtime_jobs.trouble import go_past

log = logging.getLogger(__name__)

MOST = 200
# Somewhat more than a round and a verb may take: who failed longer ago was looked at then.
LATELY = timedelta(seconds=30)
ONCE: tuple[dict[str, Any], ...] = ({},)


def sweep_scheduling(*, now: datetime | None = None, thorough: bool = True) -> None:
    """One round. Each piece is a transaction of its own, and one that fails does not stop the others.

    `thorough`: also what looks at every queue and organization, and can wait some seconds."""
    at = now or database_time()
    _each(lanes.advance, ({"lane": pk} for pk in lanes.behind()))
    _each(lanes.due, ONCE)
    _each(lanes.call_throttled, ONCE)
    _each(lifecycle.lift_what_is_over, ({"limit_id": pk, "now": now} for pk in _over(at)))
    _each(lifecycle.attend_breaker, (about | {"now": now} for about in _breakers(at)))
    if not thorough:
        return
    _each(lanes.age, ONCE)
    _each(lifecycle.keep_plan, ({"org_slug": slug, "now": now} for slug in behind_their_plans(most=MOST)))
    _each(lifecycle.lift_waiting, ({"organization": row} for row in with_jobs_to_lift()))


def _over(at: datetime) -> Iterable[int]:
    return list(Limit.objects.filter(until__lte=at).values_list("pk", flat=True)[:MOST])


def _breakers(at: datetime) -> Iterable[dict[str, Any]]:
    """Those that are not closed, and those whose jobs failed lately."""
    attended = Breaker.objects.exclude(state=BreakerState.CLOSED).values("org_slug", "job_type")
    counted = Q(failure_class__in=COUNTED) | Q(job_type__in=settings.BREAKER["job_failures"])
    lately = Job.objects.filter(counted, state=JobState.FAILED, finished_at__gt=at - LATELY)
    failed = lately.values("org_slug", "job_type")
    both = attended.union(failed.distinct())[:MOST]
    return [{"org_slug": row["org_slug"], "job_type": row["job_type"]} for row in both]


def _each(act: Callable[..., Any], subjects: Iterable[dict[str, Any]]) -> None:
    for subject in subjects:
        try:
            act(**subject)
        except (Error, LifecycleError) as error:
            go_past(error, log, "%s of %s failed; the next round tries again", act.__name__, subject)
