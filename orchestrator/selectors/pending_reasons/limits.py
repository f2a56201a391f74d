"""Finds the limits that block waiting jobs, and describes them in sentences."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from leases.models import Lane, LaneQueue, LimitKind, LimitScope
from leases.scheduling.limits import ALL_TYPES
from orchestrator.selectors.pending_reasons.queries import fetch
from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason, several
from runtime_jobs.models import Job

MAX_LANES = 1000  # of which one list reads the limits

CODES: dict[str, ReasonCode] = {
    LimitKind.PAUSE: ReasonCode.POOL_PAUSED,
    LimitKind.BREAKER: ReasonCode.BREAKER_OPEN,
    LimitKind.ORGANIZATION: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.PLAN: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.PROJECT: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.EMERGENCY: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.CONCURRENCY: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.SOURCE_ADDRESS: ReasonCode.SOURCE_ADDRESS_LIMIT,
    LimitKind.RATE: ReasonCode.RATE_LIMITED,
    LimitKind.THROTTLE: ReasonCode.RATE_LIMITED,
}


class BlockingLimit(NamedTuple):
    """A limit that lets no job of a lane start now.

    Attributes:
        lane_id: The lane.
        kind: The kind of the limit.
        scope: The scope of its target.
        org_slug: The organization of its target, if it has one.
        key: The target, such as the slug of a pool.
        max_active: The maximum number of running jobs, or None.
        per_hour: The number of starts in an hour, or None.
        until: The end of a pause or a throttle, or None.
        note: The reason that was given.
        set_by: The actor that set the limit.
        eligible_at: The time at which a job may start although nothing else changes, or None.
    """

    lane_id: int
    kind: str
    scope: str
    org_slug: str
    key: str
    max_active: int | None
    per_hour: int | None
    until: datetime | None
    note: str
    set_by: str
    eligible_at: datetime | None

    @property
    def code(self) -> ReasonCode:
        """The code of the reason."""
        return CODES[self.kind]

    @property
    def facts(self) -> dict[str, Any]:
        """The limit; of a rate or a breaker also the next start; of a pause also its author, end and note."""
        limit = {name: getattr(self, name) for name in ("kind", "scope", "key", "max_active", "per_hour")}
        facts: dict[str, Any] = {"limit": limit}
        if self.code in {ReasonCode.RATE_LIMITED, ReasonCode.BREAKER_OPEN}:
            facts["next_at"] = self.eligible_at
        if self.code == ReasonCode.POOL_PAUSED:
            facts |= {"paused_by": self.set_by, "paused_until": self.until, "note": self.note}
        return facts


def limits_of(jobs: Sequence[Job]) -> dict[int, list[BlockingLimit]]:
    """Return the limits that block these jobs by the keys of their lanes, with one query.

    Limits count whether or not a claim has met them already.
    """
    lanes = {job.lane_id for job in jobs if job.lane_id is not None}
    blocking = defaultdict(list)
    for limit in fetch("limits", BlockingLimit, lanes=list(lanes)) if lanes else []:
        blocking[limit.lane_id].append(limit)
    return blocking


def blocked_lanes(org_slugs: Sequence[str]) -> list[int] | None:
    """Return the lanes of these organizations in which a limit lets no job start now, with two queries.

    Args:
        org_slugs: The organizations.

    Returns:
        The keys of the lanes. None if the organizations have more than `MAX_LANES`.
    """
    queues = LaneQueue.objects.filter(org_slug__in=org_slugs).values("pk")
    lanes = list(Lane.objects.filter(queue_id__in=queues).values_list("pk", flat=True)[: MAX_LANES + 1])
    if len(lanes) > MAX_LANES:
        return None
    return sorted({limit.lane_id for limit in fetch("limits", BlockingLimit, lanes=lanes)}) if lanes else []


def reason_of(limit: BlockingLimit) -> WaitReason:
    """Return the reason of a job that this limit blocks."""
    return WaitReason(limit.code, _MESSAGES.get(limit.kind, _active)(limit), limit.facts)


def _pause(limit: BlockingLimit) -> str:
    return f"{_capitalize(_target(limit))} paused by {_author(limit)}{_until(limit.until)}{_note(limit)}."


def _breaker(limit: BlockingLimit) -> str:
    next_start = (
        f"One job may start at {_time(limit.eligible_at)}." if limit.eligible_at else "One job may start first."
    )
    return f"{limit.note or 'Too many jobs of this type failed.'} {next_start}"


def _rate(limit: BlockingLimit) -> str:
    starts = several(limit.per_hour or 0, "job")
    return f"{limit.org_slug} may start {starts}{_of_type(limit)} an hour; {_next_start(limit)}."


def _throttle(limit: BlockingLimit) -> str:
    rate = f"throttled to {several(limit.per_hour or 0, 'start')} an hour by {_author(limit)}"
    return f"{_capitalize(_target(limit))} {rate}{_until(limit.until)}{_note(limit)}; {_next_start(limit)}."


def _emergency(limit: BlockingLimit) -> str:
    return f"{limit.org_slug} may run at most {several(limit.max_active or 0, 'emergency job')} at once."


def _project(limit: BlockingLimit) -> str:
    return f"The project {limit.org_slug}/{limit.key} may run at most {_jobs(limit)} at once."


def _concurrency(limit: BlockingLimit) -> str:
    return f"One job of the concurrency group {limit.key} runs at a time."


def _source_address(limit: BlockingLimit) -> str:
    return f"At most {_jobs(limit)} from the address {limit.key} may run at once."


def _active(limit: BlockingLimit) -> str:
    return f"{limit.org_slug} may run at most {_jobs(limit)}{_of_type(limit)} at once."


_MESSAGES: dict[str, Callable[[BlockingLimit], str]] = {
    LimitKind.PAUSE: _pause,
    LimitKind.BREAKER: _breaker,
    LimitKind.RATE: _rate,
    LimitKind.THROTTLE: _throttle,
    LimitKind.EMERGENCY: _emergency,
    LimitKind.PROJECT: _project,
    LimitKind.CONCURRENCY: _concurrency,
    LimitKind.SOURCE_ADDRESS: _source_address,
}


def _jobs(limit: BlockingLimit) -> str:
    return several(limit.max_active or 0, "job")


def _of_type(limit: BlockingLimit) -> str:
    return "" if limit.key == ALL_TYPES else f" of type {limit.key}"


def _target(limit: BlockingLimit) -> str:
    match limit.scope:
        case LimitScope.POOL:
            return f"the pool {limit.key} is"
        case LimitScope.PROJECT:
            return f"the project {limit.org_slug}/{limit.key} is"
        case LimitScope.JOB_TYPE:
            return f"all jobs of type {limit.key} are"
    return f"jobs{_of_type(limit)} of {limit.org_slug} are"


def _author(limit: BlockingLimit) -> str:
    return limit.set_by.partition(":")[2] or "an operator"


def _until(until: datetime | None) -> str:
    return f" until {_time(until)}" if until else ""


def _note(limit: BlockingLimit) -> str:
    return f" ({limit.note})" if limit.note else ""


def _next_start(limit: BlockingLimit) -> str:
    return f"the next at {_time(limit.eligible_at)}" if limit.eligible_at else "the next soon"


def _time(timestamp: datetime) -> str:
    return timestamp.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _capitalize(words: str) -> str:
    return words[:1].upper() + words[1:]
