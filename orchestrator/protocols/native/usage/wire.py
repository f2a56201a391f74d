"""JSON of usage records. Pure functions: they run no query."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from runtime_jobs.models import UsageRecord


def serialize_usage(record: UsageRecord) -> dict[str, Any]:
    """Return a usage record."""
    return {
        "job_id": record.job_ulid,
        "org_slug": record.org_slug,
        "project_slug": record.project_slug,
        "job_type": record.job_type,
        "minute": record.minute,
        "minutes": record.minutes,
        "started_at": format_timestamp(record.started_at),
        "billed_until": format_timestamp(record.billed_until),
        "recorded_at": format_timestamp(record.recorded_at),
    }
