"""What limits are called in a sentence for people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leases.models import LimitKind, LimitScope
from leases.scheduling.limits import ALL_TYPES
from orchestrator.selectors.pending_reasons.reason import several

if TYPE_CHECKING:
    from orchestrator.selectors.pending_reasons.limits import BlockingLimit


def limit_message(holding: BlockingLimit) -> str:
    return _WORDS.get(holding.kind, _at_once)(holding)


def _pause(holding: BlockingLimit) -> str:
    return f"{_capital(_whose(holding))} paused by {_who(holding)}{_until(holding.until)}{_note(holding)}."


def _breaker(holding: BlockingLimit) -> str:
    tried = f"One is tried at {_time(holding.eligible_at)}." if holding.eligible_at else "One is tried first."
    return f"{holding.note or 'Too many of its kind failed.'} {tried}"


def _rate(holding: BlockingLimit) -> str:
    most = several(holding.per_hour or 0, "job")
    return f"{holding.org_slug} may start {most}{_of_type(holding)} an hour; {_next(holding)}."


def _throttle(holding: BlockingLimit) -> str:
    to = f"throttled to {several(holding.per_hour or 0, 'start')} an hour by {_who(holding)}"
    return f"{_capital(_whose(holding))} {to}{_until(holding.until)}{_note(holding)}; {_next(holding)}."


def _emergency(holding: BlockingLimit) -> str:
    return f"{holding.org_slug} may run {_jobs(holding)} at once that skip the queue, and no more."


def _group(holding: BlockingLimit) -> str:
    return f"Of the concurrency group {holding.key} one job runs at a time."


def _address(holding: BlockingLimit) -> str:
    return f"From the address {holding.key} {_jobs(holding)} may run at once, and no more."


def _at_once(holding: BlockingLimit) -> str:
    return f"{holding.org_slug} may run {_jobs(holding)}{_of_type(holding)} at once, and no more."


_WORDS: dict[str, Callable[[BlockingLimit], str]] = {
    LimitKind.PAUSE: _pause,
    LimitKind.BREAKER: _breaker,
    LimitKind.RATE: _rate,
    LimitKind.THROTTLE: _throttle,
    LimitKind.EMERGENCY: _emergency,
    LimitKind.CONCURRENCY: _group,
    LimitKind.SOURCE_ADDRESS: _address,
}


def _jobs(holding: BlockingLimit) -> str:
    return several(holding.max_active or 0, "job")


def _of_type(holding: BlockingLimit) -> str:
    return "" if holding.key == ALL_TYPES else f" of type {holding.key}"


def _whose(holding: BlockingLimit) -> str:
    match holding.scope:
        case LimitScope.POOL:
            return f"the pool {holding.key} is"
        case LimitScope.PROJECT:
            return f"the project {holding.org_slug}/{holding.key} is"
        case LimitScope.JOB_TYPE:
            return f"all jobs of type {holding.key} are"
    return f"jobs{_of_type(holding)} of {holding.org_slug} are"


def _who(holding: BlockingLimit) -> str:
    return holding.set_by.partition(":")[2] or "an operator"


def _until(at: datetime | None) -> str:
    return f" until {_time(at)}" if at else ""


def _note(holding: BlockingLimit) -> str:
    return f" ({holding.note})" if holding.note else ""


def _next(holding: BlockingLimit) -> str:
    return f"the next at {_time(holding.eligible_at)}" if holding.eligible_at else "the next soon"


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
