"""JSON of sources."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from orchestrator.protocols.stella.sources.names import source_id
from orchestrator.selectors.sources import JobSource


def serialize_source(source: JobSource) -> dict[str, Any]:
    """Return a source."""
    return {
        "sourceId": source_id(source.target),
        "tenant": source.org_slug or None,
        "jobType": source.job_type,
        "project": source.project,
        "status": source.status,
        "until": format_timestamp(source.until),
        "maxPerHour": source.per_hour,
        "burst": source.burst,
        "setBy": serialize_actor(source.set_by),
        "setAt": format_timestamp(source.set_at),
        "reason": source.note,
        "queued": source.queued,
    }
