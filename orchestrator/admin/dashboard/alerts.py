"""What is wrong right now, in sentences, worst first, each with a link to the rows that it is about."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from leases.models import Lease
from orchestrator.admin import formatting
from orchestrator.admin.dashboard import queries, restrictions
from orchestrator.admin.dashboard.queries import FailureCounts, QueueCounts, WorkerCounts
from orchestrator.admin.dashboard.restrictions import Restriction
from orchestrator.models import ClockBeat
from runtime_jobs.models import Job
from runtime_jobs.states import FailureClass
from workers.models import Worker

LONG_WAIT = timedelta(minutes=10)
NOT_OURS = {FailureClass.JOB, FailureClass.POLICY}  # the tenant's command, the plan's limits: nothing to mend here


@dataclass(frozen=True)
class Alert:
    """`level`: danger (mend it now), warning (look at it)."""

    level: str
    text: str
    link: str


@dataclass(frozen=True)
class State:
    """Everything that the page says, read once."""

    now: datetime
    beat: ClockBeat | None
    queues: list[QueueCounts]
    crews: list[WorkerCounts]
    held: dict[str, dict[str, int]]
    failures: list[FailureCounts]
    overdue_leases: int
    never_acknowledged: int
    overdue_cancels: int
    held_back: Restriction


def current_alerts(now: datetime) -> State:
    return State(
        now=now,
        beat=queries.clock_beat(),
        queues=queries.queues(),
        crews=queries.crews(now),
        held=queries.held(),
        failures=queries.failures(now),
        overdue_leases=queries.overdue_leases(now),
        never_acknowledged=queries.never_acknowledged(now),
        overdue_cancels=queries.overdue_cancels(now),
        held_back=restrictions.look(now),
    )


def problems(state: State) -> Iterator[Alert]:
    """Worst first."""
    if queries.is_silent(state.beat, state.now):
        seen = formatting.time_ago(state.beat.beat_at if state.beat else None, state.now)
        yield Alert("danger", f"The clock is silent (last beat: {seen}): nothing expires, no cancel is forced.", "")
    alive = {crew.pool: crew.alive for crew in state.crews}
    for queue in state.queues:
        if not alive.get(queue.pool):
            text = f"{some(queue.waiting, 'job waits', 'jobs wait')} in {queue.pool}, where no worker is alive."
            yield Alert("danger", text, formatting.changelist_url(Job, state="queued", pool=queue.pool))
    if state.overdue_leases:
        text = f"{some(state.overdue_leases, 'lease is', 'leases are')} overdue: the clock has not ended them."
        yield Alert("danger", text, formatting.changelist_url(Lease, due="overdue"))
    if state.overdue_cancels:
        text = f"{some(state.overdue_cancels, 'cancel was', 'cancels were')} not obeyed in time."
        yield Alert("danger", text, formatting.changelist_url(Job, cancel="overdue"))
    yield from _warnings(state, alive)


def _warnings(state: State, alive: dict[str, int]) -> Iterator[Alert]:
    if silent := sum(crew.silent for crew in state.crews):
        text = f"{some(silent, 'active worker has', 'active workers have')} been silent for more than a minute."
        yield Alert("warning", text, formatting.changelist_url(Worker, health="silent"))
    for text, link in restrictions.sentences(state.held_back, state.now):
        yield Alert("warning", text, link)
    for queue in state.queues:
        if alive.get(queue.pool) and state.now - queue.oldest > LONG_WAIT:
            text = f"The oldest job in {queue.pool} has waited for {formatting.elapsed(queue.oldest, state.now)}."
            yield Alert("warning", text, formatting.changelist_url(Job, state="queued", pool=queue.pool))
    if state.never_acknowledged:
        text = f"{some(state.never_acknowledged, 'job was', 'jobs were')} handed out but not taken up in 24 hours."
        yield Alert("warning", text, formatting.changelist_url(Lease, ended_reason="not_acknowledged"))
    for failed in state.failures:
        if failed.failure_class not in NOT_OURS:
            text = f"{some(failed.count, 'job', 'jobs')} failed in 24 hours: {failed.reason.replace('_', ' ')}."
            yield Alert("warning", text, failed_list(failed.reason))


def failed_list(reason: str) -> str:
    return formatting.changelist_url(Job, failure_reason=reason, ended="24h")


def number(count: int) -> str:
    return f"{count:,}" if count <= queries.COUNTED else f"{queries.COUNTED:,}+"


def some(count: int, one: str, many: str) -> str:
    return f"{number(count)} {one if count == 1 else many}"
