"""The dashboard: alerts first, then tiles, pools and failures. The theme calls `dashboard` for its index page."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from orchestrator.admin import formatting
from orchestrator.admin.dashboard.alerts import (
    DashboardState,
    bounded,
    current_alerts,
    failed_jobs_url,
    is_platform_error,
    read_state,
)
from orchestrator.admin.dashboard.queries import WorkerCounts
from orchestrator.admin.dashboard.tiles import tiles
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job

REQUIRED_PERMISSION = "runtime_jobs.view_job"
RECENT_FAILURES = 6


@dataclass(frozen=True)
class PoolRow:
    """A row of the table of pools. `stranded`: jobs are queued, and no worker is online."""

    pool: str
    queued: str
    oldest: str
    running: int
    free: int
    workers: str
    stranded: bool


@dataclass(frozen=True)
class FailureBar:
    """A bar of the chart of failure reasons. `percent` is relative to the most frequent reason."""

    reason: str
    failure_class: str
    is_platform_error: bool
    count: int
    percent: int
    link: str


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add the dashboard to the context of the index page.

    A user without the permission gets the list of pages that the user may view, and the name of the permission.
    """
    context |= {"title": "Dashboard"}
    if not request.user.has_perm(REQUIRED_PERMISSION):
        return context | {"state": None}
    state = read_state(database_now())
    return context | {
        "state": state,
        "alerts": list(current_alerts(state)),
        "tiles": list(tiles(state)),
        "pools": list(pool_rows(state)),
        "failures": failure_bars(state),
        "recent_failures": list(Job.objects.with_status("failed").order_by("-created_at")[:RECENT_FAILURES]),
    }


def pool_rows(state: DashboardState) -> Iterator[PoolRow]:
    """Yield a row for each pool that has workers or jobs."""
    queues = {queue.pool: queue for queue in state.queues}
    workers = {pool.pool: pool for pool in state.workers}
    for pool in sorted(queues.keys() | workers.keys() | state.running.keys()):
        queue, counts = queues.get(pool), workers.get(pool, WorkerCounts(pool))
        yield PoolRow(
            pool=pool,
            queued=bounded(queue.queued) if queue else "0",
            oldest=formatting.elapsed(queue.oldest, state.now) if queue else "",
            running=state.running.get(pool, 0),
            free=counts.free,
            workers=_worker_summary(counts),
            stranded=bool(queue and not counts.online),
        )


def _worker_summary(counts: WorkerCounts) -> str:
    others = (
        (counts.offline, "offline"),
        (counts.draining, "draining"),
        (counts.maintenance, "in maintenance"),
        (counts.never_connected, "never connected"),
    )
    return ", ".join([f"{counts.online} online", *(f"{count} {health}" for count, health in others if count)])


def failure_bars(state: DashboardState) -> list[FailureBar]:
    """Return the failure reasons of the last day, most frequent first."""
    maximum = max((failure.count for failure in state.failures), default=1)
    return [
        FailureBar(
            reason=formatting.humanize(failure.reason),
            failure_class=failure.failure_class,
            is_platform_error=is_platform_error(failure),
            count=failure.count,
            percent=round(100 * failure.count / maximum),
            link=failed_jobs_url(failure.reason),
        )
        for failure in state.failures
    ]
