"""The tiles of the dashboard: five numbers with a label and a note, each a link to the list behind it."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.admin import formatting
from orchestrator.admin.dashboard.alerts import LONG_WAIT, DashboardState, bounded
from runtime_jobs.models import Job
from workers.models import Worker


@dataclass(frozen=True)
class Tile:
    """`level` is the theme's name of the colour."""

    label: str
    value: str
    note: str
    link: str
    level: str


def tiles(state: DashboardState) -> Iterator[Tile]:
    """Yield the tiles from left to right."""
    yield _scheduler(state)
    yield _workers(state)
    yield _queued(state)
    yield _running(state)
    yield _failed(state)


def _scheduler(state: DashboardState) -> Tile:
    note = "no heartbeat yet"
    if state.heartbeat:
        note = f"last heartbeat {formatting.time_ago(state.heartbeat.beat_at, state.now)}"
    value, level = ("Down", "danger") if state.is_scheduler_down else ("Healthy", "success")
    return Tile("Scheduler", value, note, "", level)


def _workers(state: DashboardState) -> Tile:
    online = sum(pool.online for pool in state.workers)
    offline = sum(pool.offline for pool in state.workers)
    others = (
        (offline, "offline"),
        (sum(pool.draining for pool in state.workers), "draining"),
        (sum(pool.maintenance for pool in state.workers), "in maintenance"),
        (sum(pool.never_connected for pool in state.workers), "never connected"),
    )
    note = ", ".join(f"{count} {health}" for count, health in others if count)
    note = note or ("none offline" if online else "none registered")
    level = "warning" if offline else "success" if online else "default"
    return Tile("Workers online", str(online), note, formatting.changelist_url(Worker), level)


def _queued(state: DashboardState) -> Tile:
    oldest = min((queue.oldest for queue in state.queues), default=None)
    note = f"oldest {formatting.elapsed(oldest, state.now)}" if oldest else "queue empty"
    level = "warning" if oldest and state.now - oldest > LONG_WAIT else "info"
    count = bounded(sum(queue.queued for queue in state.queues))
    return Tile("Queued", count, note, formatting.changelist_url(Job, state="queued"), level)


def _running(state: DashboardState) -> Tile:
    free = formatting.pluralize(sum(pool.free for pool in state.workers), "free slot")
    running = sum(state.running.values())
    return Tile("Running", f"{running:,}", free, formatting.changelist_url(Job, status="running"), "primary")


def _failed(state: DashboardState) -> Tile:
    failed, platform_errors = sum(failure.count for failure in state.failures), state.platform_errors
    level = "danger" if platform_errors else "default" if failed else "success"
    link = formatting.changelist_url(Job, status="failed", ended="24h")
    return Tile("Failed (24 h)", bounded(failed), bounded(platform_errors, "platform error"), link, level)
