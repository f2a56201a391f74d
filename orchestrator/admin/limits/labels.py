"""Describes limits in words: scope, value, use."""

from datetime import datetime
from typing import Any

from django.utils import timezone

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import ALL_TYPES
from orchestrator.admin import formatting
from orchestrator.admin.labels import stored_actor_label

KINDS: dict[str, str] = {
    LimitKind.ORGANIZATION: "Concurrency",
    LimitKind.PLAN: "Concurrency (plan)",
    LimitKind.PROJECT: "Concurrency (project)",
    LimitKind.EMERGENCY: "Emergency concurrency",
    LimitKind.SOURCE_ADDRESS: "Source IP",
    LimitKind.CONCURRENCY: "Concurrency group",
    LimitKind.RATE: "Rate",
    LimitKind.PAUSE: "Pause",
    LimitKind.THROTTLE: "Throttle",
    LimitKind.BREAKER: "Breaker",
}
SCOPES: dict[str, str] = {
    LimitScope.ORGANIZATION: "Organization",
    LimitScope.PROJECT: "Project",
    LimitScope.ADDRESS: "Source IP",
    LimitScope.KEY: "Concurrency group",
    LimitScope.POOL: "Pool",
    LimitScope.JOB_TYPE: "Job type",
}
COLOURS: dict[str, str] = dict.fromkeys(KINDS, "default") | {
    LimitKind.PAUSE: "danger",
    LimitKind.BREAKER: "danger",
    LimitKind.THROTTLE: "warning",
    LimitKind.RATE: "info",
    LimitKind.EMERGENCY: "primary",
}


def scope_of(limit: Limit) -> str:
    """Name the jobs that a limit applies to: `acme`, `acme/web`, `steps jobs of acme`, `pool shared-linux`."""
    match limit.scope:
        case LimitScope.PROJECT:
            return f"{limit.org_slug}/{limit.key}"
        case LimitScope.POOL:
            return f"pool {limit.key}"
        case LimitScope.JOB_TYPE:
            return f"all {limit.key} jobs"
        case LimitScope.ADDRESS:
            return f"source IP {limit.key}"
        case LimitScope.KEY:
            return f"concurrency group {limit.key} of {limit.org_slug}"
    return limit.org_slug if limit.key == ALL_TYPES else f"{limit.key} jobs of {limit.org_slug}"


def value_of(limit: Limit) -> str:
    """Format the value of a limit: `3 concurrent`, `60 per hour, burst 5`, `0`."""
    if limit.per_hour is not None:
        return f"{limit.per_hour:,} per hour, burst {limit.burst:,}"
    if limit.one_shot and limit.max_active:
        return "1 probe"
    return f"{limit.max_active:,} concurrent" if limit.max_active else "0"


def usage_of(limit: Any) -> str:
    """Format how many jobs run under a limit. Needs the annotation of `Limit.objects.counted()`."""
    if limit.max_active is None or limit.kind == LimitKind.PAUSE:
        return formatting.NO_VALUE
    return f"{limit.running:,} of {limit.max_active:,}"


def next_start(limit: Limit, now: datetime) -> datetime | None:
    """Return when an exhausted rate allows the next start, or None."""
    due = limit.next_start_at
    return due if due and due > now else None


def set_by(limit: Limit) -> str:
    """Name who set the limit: `operator olga`, `client token ci`, `System`."""
    return stored_actor_label(limit.set_by) or formatting.NO_VALUE


def describe_temporary(limit: Limit) -> str:
    """Describe a pause or throttle: `paused by operator olga until 2026-01-01 20:00 UTC (in 12 min): new disks`."""
    state = "paused" if limit.kind == LimitKind.PAUSE else f"throttled to {value_of(limit)}"
    until = ""
    if limit.until:
        until = f" until {limit.until:%Y-%m-%d %H:%M} UTC ({formatting.time_until(limit.until, timezone.now())})"
    return f"{state} by {set_by(limit)}{until}: {limit.note}"
