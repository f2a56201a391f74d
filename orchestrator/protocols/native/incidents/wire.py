"""JSON of incidents and incident modes. Pure functions: they run no query."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from orchestrator.incidents.models import Incident, IncidentMode


def serialize_incident(incident: Incident) -> dict[str, Any]:
    """Return an incident."""
    return {
        "incident_id": incident.incident_ulid,
        "kind": incident.kind,
        "status": str(incident.status),
        "org_slug": incident.org_slug,
        "job_type": incident.job_type,
        "job_id": incident.job_ulid,
        "webhook_id": incident.webhook_ulid,
        "worker_id": incident.worker_ulid,
        "reason": incident.reason or None,
        "summary": incident.summary,
        "opened_at": format_timestamp(incident.opened_at),
        "acknowledged_at": format_timestamp(incident.acknowledged_at),
        "acknowledged_by": serialize_actor(incident.acknowledged_by),
        "resolved_at": format_timestamp(incident.resolved_at),
        "resolved_by": serialize_actor(incident.resolved_by),
        "resolution": incident.resolution or None,
    }


def serialize_incident_mode(mode: IncidentMode) -> dict[str, Any]:
    """Return the incident mode of an organization."""
    return {
        "org_slug": mode.org_slug,
        "reason": mode.reason,
        "begun_at": format_timestamp(mode.begun_at),
        "begun_by": serialize_actor(mode.begun_by),
        "until": format_timestamp(mode.until),
    }
