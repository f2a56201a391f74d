"""The first page: is anything wrong? Alarms first, then the numbers, each a link to what it counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from orchestrator.admin import formatting
from orchestrator.admin.dashboard import queries
from orchestrator.admin.dashboard.alerts import (
    LONG_WAIT,
    NOT_OURS,
    State,
    current_alerts,
    failed_list,
    number,
    problems,
)
from orchestrator.admin.dashboard.queries import WorkerCounts
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from workers.models import Worker


@dataclass(frozen=True)
class PoolLine:
    """One pool as the table shows it."""

    pool: str
    waiting: str
    oldest: str
    running: int
    alive: int
    capacity: int
    silent: int
    away: int
    stranded: bool


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The theme calls this for its index page. Who may not see jobs gets the plain list of pages."""
    if not request.user.has_perm("runtime_jobs.view_job"):
        return context
    state = current_alerts(database_now())
    return context | {
        "title": "Is anything wrong?",
        "state": state,
        "problems": list(problems(state)),
        "tiles": list(tiles(state)),
        "pools": list(pools(state)),
        "failures": bars(state),
        "latest": list(Job.objects.filter(status="failed").order_by("-created_at")[:6]),
    }


def tiles(state: State) -> Iterator[dict[str, Any]]:
    """Five numbers, each a link."""
    silent = queries.is_silent(state.beat, state.now)
    beat = formatting.time_ago(state.beat.beat_at, state.now) if state.beat else "never seen"
    yield _tile("Clock", "silent" if silent else "alive", beat, "", "danger" if silent else "success")
    alive, quiet = (sum(getattr(crew, name) for crew in state.crews) for name in ("alive", "silent"))
    away = sum(crew.draining + crew.maintenance for crew in state.crews)
    note = ", ".join(f"{count} {name}" for count, name in ((quiet, "silent"), (away, "set aside")) if count)
    level = "warning" if quiet else "success" if alive else "default"
    yield _tile("Workers", str(alive), note or "all well", formatting.changelist_url(Worker), level)
    waiting = sum(queue.waiting for queue in state.queues)
    oldest = min((queue.oldest for queue in state.queues), default=None)
    note = f"oldest {formatting.elapsed(oldest, state.now)}" if oldest else "nobody waits"
    stuck = bool(oldest and state.now - oldest > LONG_WAIT)
    yield _tile(
        "Waiting", number(waiting), note, formatting.changelist_url(Job, state="queued"), "warning" if stuck else "info"
    )
    running = sum(sum(states.values()) for states in state.held.values())
    room = sum(crew.capacity for crew in state.crews)
    yield _tile(
        "Running", str(running), f"room for {room}", formatting.changelist_url(Job, status="running"), "primary"
    )
    failed = sum(failure.count for failure in state.failures)
    ours = sum(failure.count for failure in state.failures if failure.failure_class not in NOT_OURS)
    note = f"{number(ours)} of them ours to mend" if failed else "none"
    level = "danger" if ours else "default" if failed else "success"
    yield _tile(
        "Failed in 24 h", number(failed), note, formatting.changelist_url(Job, status="failed", ended="24h"), level
    )


def _tile(title: str, value: str, note: str, link: str, level: str) -> dict[str, Any]:
    return {"title": title, "value": value, "note": note, "link": link, "level": level}


def pools(state: State) -> Iterator[PoolLine]:
    waiting = {queue.pool: queue for queue in state.queues}
    crews = {crew.pool: crew for crew in state.crews}
    for pool in sorted(waiting.keys() | crews.keys() | state.held.keys()):
        queue, crew = waiting.get(pool), crews.get(pool, WorkerCounts(pool, 0, 0, 0, 0, 0))
        yield PoolLine(
            pool=pool,
            waiting=number(queue.waiting) if queue else "0",
            oldest=formatting.elapsed(queue.oldest, state.now) if queue else "",
            running=sum(state.held.get(pool, {}).values()),
            alive=crew.alive,
            capacity=crew.capacity,
            silent=crew.silent,
            away=crew.draining + crew.maintenance,
            stranded=bool(queue and not crew.alive),
        )


def bars(state: State) -> list[dict[str, Any]]:
    most = max((failed.count for failed in state.failures), default=1)
    return [
        {
            "reason": failed.reason.replace("_", " "),
            "ours": failed.failure_class not in NOT_OURS,
            "class": failed.failure_class,
            "count": failed.count,
            "share": round(100 * failed.count / most),
            "link": failed_list(failed.reason),
        }
        for failed in state.failures
    ]
