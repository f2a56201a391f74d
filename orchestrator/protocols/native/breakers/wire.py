"""JSON of breakers and incidents. Pure functions: they run no query."""

from typing import Any

from leases.models import Breaker, BreakerState
from orchestrator.http.api.datetimes import format_timestamp
from orchestrator.models import Incident
from orchestrator.protocols.native.limits.wire import serialize_actor


def serialize_breaker(breaker: Breaker) -> dict[str, Any]:
    """Return a breaker."""
    is_open = breaker.state == BreakerState.OPEN
    return {
        "org_slug": breaker.org_slug,
        "job_type": breaker.job_type,
        "state": breaker.state,
        "opened_at": None if breaker.state == BreakerState.CLOSED else format_timestamp(breaker.opened_at),
        "next_probe_at": format_timestamp(breaker.cool_until) if is_open else None,
    }


def serialize_incident(incident: Incident) -> dict[str, Any]:
    """Return an incident."""
    return {
        "incident_id": incident.incident_ulid,
        "kind": incident.kind,
        "org_slug": incident.org_slug,
        "job_type": incident.job_type,
        "summary": incident.summary,
        "opened_at": format_timestamp(incident.opened_at),
        "resolved_at": format_timestamp(incident.resolved_at),
        "resolved_by": serialize_actor(incident.resolved_by),
    }
