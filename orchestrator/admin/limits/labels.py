"""Limits in words: whose jobs, what it lets through, how much of that is used."""

from datetime import datetime
from typing import Any

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import ALL_TYPES

KINDS: dict[str, str] = {
    LimitKind.ORGANIZATION: "at once",
    LimitKind.PLAN: "by its plan",
    LimitKind.EMERGENCY: "emergencies",
    LimitKind.SOURCE_ADDRESS: "of an address",
    LimitKind.CONCURRENCY: "of a key",
    LimitKind.RATE: "rate",
    LimitKind.PAUSE: "pause",
    LimitKind.THROTTLE: "throttle",
    LimitKind.BREAKER: "breaker",
}
COLOURS: dict[str, str] = dict.fromkeys(KINDS, "default") | {
    LimitKind.PAUSE: "danger",
    LimitKind.BREAKER: "danger",
    LimitKind.THROTTLE: "warning",
    LimitKind.RATE: "info",
    LimitKind.EMERGENCY: "primary",
}


def whose(limit: Limit) -> str:
    """As it stands in a sentence: `acme`, `acme/web`, `steps jobs of acme`, `pool shared-linux`."""
    match limit.scope:
        case LimitScope.PROJECT:
            return f"{limit.org_slug}/{limit.key}"
        case LimitScope.POOL:
            return f"pool {limit.key}"
        case LimitScope.JOB_TYPE:
            return f"all {limit.key} jobs"
        case LimitScope.ADDRESS:
            return f"address {limit.key}"
        case LimitScope.KEY:
            return f"key {limit.key} of {limit.org_slug}"
    return limit.org_slug if limit.key == ALL_TYPES else f"{limit.key} jobs of {limit.org_slug}"


def allows(limit: Limit) -> str:
    """What it lets through: `3 at once`, `60 an hour, 5 at once`, `nothing`."""
    if limit.per_hour is not None:
        return f"{limit.per_hour:,} an hour, {limit.burst:,} at once"
    if limit.one_shot and limit.max_active:
        return "one, to try"
    return f"{limit.max_active:,} at once" if limit.max_active else "nothing"


def used(limit: Any) -> str:
    """How much of it is used, of one of `Limit.objects.counted()`."""
    if limit.max_active is None or limit.kind == LimitKind.PAUSE:
        return "-"
    return f"{limit.running:,} of {limit.max_active:,}"


def next_start(limit: Limit, now: datetime) -> datetime | None:
    """When a used-up rate lets the next job start."""
    due = limit.next_start_at
    return due if due and due > now else None


def set_by(limit: Limit) -> str:
    """`olga`, `token ci`, `the clock`: without the kind of actor, which the trail has."""
    kind, _, name = limit.set_by.partition(":")
    return "the clock" if kind == "clock" else name or "-"
