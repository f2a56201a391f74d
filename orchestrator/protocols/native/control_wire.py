"""Limits, breakers, incidents and pools as the native API shows them. Pure: no query is made here."""

from datetime import datetime
from typing import Any

from leases.models import Breaker, BreakerState, Limit, LimitKind
from orchestrator.models import Incident
from orchestrator.protocols.native.wire import moment


def limit(row: Any, at: datetime) -> dict[str, Any]:
    """`row`: one of `Limit.objects.counted()`."""
    return {
        "limit_id": row.pk,
        "kind": row.kind,
        "scope": row.scope,
        "org_slug": row.org_slug or None,
        "key": row.key,
        "max_active": row.max_active,
        "running": None if row.max_active is None or row.kind == LimitKind.PAUSE else row.running,
        "per_hour": row.per_hour,
        "burst": row.burst,
        "next_start_at": moment(next_start(row, at)),
        "until": moment(row.until),
        "waiting": row.waiting,
        "reason": row.note,
        "set_by": actor(row.set_by),
        "set_at": moment(row.set_at),
        "version": row.version,
    }


def next_start(row: Limit, at: datetime) -> datetime | None:
    """When time alone lets the next job start; None: now, or as soon as a job ends or somebody acts."""
    if row.kind == LimitKind.PAUSE:
        return row.until
    due = row.next_start_at
    if due is None or due <= at:
        return None
    return min(due, row.until) if row.until else due


def actor(text: str) -> dict[str, str] | None:
    kind, _, name = text.partition(":")
    return {"kind": kind, "id": name} if text else None


def breaker(row: Breaker) -> dict[str, Any]:
    is_open = row.state == BreakerState.OPEN
    return {
        "org_slug": row.org_slug,
        "job_type": row.job_type,
        "state": row.state,
        "opened_at": None if row.state == BreakerState.CLOSED else moment(row.opened_at),
        "next_probe_at": moment(row.cool_until) if is_open else None,
    }


def incident(row: Incident) -> dict[str, Any]:
    return {
        "incident_id": row.incident_ulid,
        "kind": row.kind,
        "org_slug": row.org_slug,
        "job_type": row.job_type,
        "summary": row.summary,
        "opened_at": moment(row.opened_at),
        "resolved_at": moment(row.resolved_at),
        "resolved_by": actor(row.resolved_by),
    }
