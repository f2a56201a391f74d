"""Alerts of the dashboard, most severe first, each with a link to the rows that it counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from leases.models import Lease
from orchestrator.admin import formatting
from orchestrator.admin.dashboard import queries, restrictions
from orchestrator.admin.dashboard.queries import (
    DispatchCounts,
    FailureCounts,
    HousekeepingCounts,
    QueueCounts,
    WorkerCounts,
)
from orchestrator.admin.dashboard.restrictions import Restrictions
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.webhooks.models import Delivery, Webhook
from runtime_jobs.models import Job
from runtime_jobs.states import FailureClass
from workers.models import Runner, Worker

MAX_NAMED_RUNNERS = 5
LONG_WAIT = timedelta(minutes=10)
TENANT_FAILURES = {FailureClass.JOB, FailureClass.POLICY}  # the tenant's command, the plan's limits: no platform error


@dataclass(frozen=True)
class Alert:
    """`level` is `danger` (act now) or `warning` (check)."""

    level: str
    text: str
    link: str


@dataclass(frozen=True)
class DashboardState:
    """All counts of the dashboard, read once."""

    now: datetime
    heartbeat: ClockBeat | None
    queues: list[QueueCounts]
    workers: list[WorkerCounts]
    running: dict[str, int]
    failures: list[FailureCounts]
    overdue_leases: int
    never_acknowledged: int
    overdue_cancels: int
    silent_runners: dict[str, datetime]
    restrictions: Restrictions
    housekeeping: HousekeepingCounts
    dispatch: DispatchCounts

    @property
    def is_scheduler_down(self) -> bool:
        return queries.is_scheduler_down(self.heartbeat, self.now)

    @property
    def platform_errors(self) -> int:
        """Failed jobs whose cause is a worker or the infrastructure."""
        return sum(failure.count for failure in self.failures if is_platform_error(failure))


def read_state(now: datetime) -> DashboardState:
    """Run the queries of the dashboard."""
    return DashboardState(
        now=now,
        heartbeat=queries.scheduler_heartbeat(),
        queues=queries.queue_counts(),
        workers=queries.worker_counts(now),
        running=queries.running_counts(),
        failures=queries.failure_counts(now),
        overdue_leases=queries.overdue_leases(now),
        never_acknowledged=queries.never_acknowledged(now),
        overdue_cancels=queries.overdue_cancels(now),
        silent_runners=queries.silent_runners(now),
        restrictions=restrictions.current_restrictions(now),
        housekeeping=queries.housekeeping_counts(now),
        dispatch=queries.dispatch_counts(now),
    )


def current_alerts(state: DashboardState) -> Iterator[Alert]:
    """Yield the alerts, most severe first."""
    if state.is_scheduler_down:
        last = formatting.time_ago(state.heartbeat.beat_at if state.heartbeat else None, state.now)
        text = f"Scheduler down (last heartbeat: {last}): no lease expires. Start manage.py runclock."
        yield Alert("danger", text, "")
    online = {workers.pool: workers.online for workers in state.workers}
    for queue in state.queues:
        if not online.get(queue.pool):
            text = f"{bounded(queue.queued, 'queued job')} in pool {queue.pool} without an online worker."
            yield Alert("danger", text, formatting.changelist_url(Job, state="queued", pool=queue.pool))
    if state.overdue_leases:
        text = f"{bounded(state.overdue_leases, 'overdue lease')}: not expired by the scheduler."
        yield Alert("danger", text, formatting.changelist_url(Lease, due="overdue"))
    if state.overdue_cancels:
        text = f"{bounded(state.overdue_cancels, 'overdue cancel')}: not stopped by the worker in time."
        yield Alert("danger", text, formatting.changelist_url(Job, cancel="overdue"))
    yield from _warnings(state, online)


def _warnings(state: DashboardState, online: dict[str, int]) -> Iterator[Alert]:
    if offline := sum(workers.offline for workers in state.workers):
        text = f"{bounded(offline, 'worker')} offline: no heartbeat for more than a minute."
        yield Alert("warning", text, formatting.changelist_url(Worker, health="offline"))
    if state.silent_runners:
        yield Alert("warning", _silent_runners_text(state), formatting.changelist_url(Runner))
    for text, link in restrictions.restriction_alerts(state.restrictions, state.now):
        yield Alert("warning", text, link)
    for queue in state.queues:
        if online.get(queue.pool) and state.now - queue.oldest > LONG_WAIT:
            text = f"Long queue time in pool {queue.pool}: {formatting.elapsed(queue.oldest, state.now)}."
            yield Alert("warning", text, formatting.changelist_url(Job, state="queued", pool=queue.pool))
    if state.never_acknowledged:
        text = f"{bounded(state.never_acknowledged, 'lease')} not acknowledged by the worker in the last 24 hours."
        yield Alert("warning", text, formatting.changelist_url(Lease, ended_reason="not_acknowledged"))
    yield from _housekeeping_alerts(state)
    yield from _dispatch_alerts(state)
    for failure in state.failures:
        if is_platform_error(failure):
            reason = formatting.humanize(failure.reason)
            text = f"{bounded(failure.count, 'platform error')} in the last 24 hours: {reason}."
            yield Alert("warning", text, failed_jobs_url(failure.reason))


def _housekeeping_alerts(state: DashboardState) -> Iterator[Alert]:
    found = state.housekeeping
    if found.waiting_since is not None:
        waited = formatting.elapsed(found.waiting_since, state.now)
        text = f"Housekeeping tasks due for {waited}: start manage.py runhousekeeping, or more of its processes."
        yield Alert("warning", text, formatting.changelist_url(HousekeepingTask))
    if found.failing:
        text = f"{bounded(found.failing, 'housekeeping task')} failing. The page has the last errors."
        yield Alert("warning", text, formatting.changelist_url(HousekeepingTask, state="lasting"))


def _dispatch_alerts(state: DashboardState) -> Iterator[Alert]:
    found = state.dispatch
    if found.is_silent:
        last = formatting.time_ago(found.beat_at, state.now) if found.beat_at else "none yet"
        text = f"No dispatcher reads events (last beat: {last}): start manage.py rundispatcher."
        yield Alert("warning", text, "")
    if found.waiting_since is not None:
        waited = formatting.elapsed(found.waiting_since, state.now)
        text = f"Deliveries due for {waited}: start manage.py rundispatcher, or more of its processes."
        yield Alert("warning", text, formatting.changelist_url(Delivery, status="pending"))
    if found.stopped_webhooks:
        text = f"{bounded(found.stopped_webhooks, 'webhook')} paused or disabled: the receiver fails or is gone."
        yield Alert("warning", text, formatting.changelist_url(Webhook))
    if found.dead_letters:
        text = f"{bounded(found.dead_letters, 'dead letter')} of webhooks and mail."
        yield Alert("warning", text, formatting.changelist_url(Delivery, status="dead"))


def _silent_runners_text(state: DashboardState) -> str:
    """Name the runners that have been silent longest, and say what happens to their jobs."""
    longest = sorted(state.silent_runners.items(), key=lambda item: item[1])
    names = [f"{slug} for {formatting.elapsed(last, state.now)}" for slug, last in longest[:MAX_NAMED_RUNNERS]]
    more = len(longest) - len(names)
    named = ", ".join(names) + (f" and {more:,} more" if more > 0 else "")
    subject = "Runner" if len(longest) == 1 else "Runners"
    return f"{subject} silent with a job: {named}. The job is lost when its lease expires."


def is_platform_error(failure: FailureCounts) -> bool:
    """Report whether the operators, not the tenant, can fix the cause."""
    return failure.failure_class not in TENANT_FAILURES


def failed_jobs_url(reason: str) -> str:
    """Return the list of jobs that failed for this reason in the last day."""
    return formatting.changelist_url(Job, failure_reason=reason, ended="24h")


def bounded(count: int, noun: str = "") -> str:
    """Format a count that stops at MAX_COUNT, with its noun: `1 job`, `10,000+ jobs`."""
    text = f"{count:,}" if count <= queries.MAX_COUNT else f"{queries.MAX_COUNT:,}+"
    return f"{text} {noun}{'s' * (count != 1)}" if noun else text
