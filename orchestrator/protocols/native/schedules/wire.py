"""JSON of schedules and their ticks. Pure functions: they run no query."""

from datetime import datetime
from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from orchestrator.schedules.cron import CronTimes
from orchestrator.schedules.models import Schedule, ScheduleTick

NEXT_TIMES = 5


def serialize_schedule(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule. Its organization was read with it."""
    return {
        "schedule_id": schedule.schedule_ulid,
        "org_slug": schedule.organization.slug,
        "name": schedule.name,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "job": schedule.job,
        "missed": str(schedule.missed),
        "overlap": str(schedule.overlap),
        "status": str(schedule.status),
        "next_at": format_timestamp(schedule.next_at),
        "updated_by": serialize_actor(schedule.updated_by),
        "created_at": format_timestamp(schedule.created_at),
        "updated_at": format_timestamp(schedule.updated_at),
    }


def serialize_schedule_detail(schedule: Schedule, now: datetime) -> dict[str, Any]:
    """Return a schedule with its next times, also while it is paused."""
    times = CronTimes(schedule.cron, schedule.time_zone).upcoming(now, NEXT_TIMES)
    return serialize_schedule(schedule) | {"next_times": [format_timestamp(time) for time in times]}


def serialize_tick(tick: ScheduleTick) -> dict[str, Any]:
    """Return what became of one time."""
    return {
        "due_at": format_timestamp(tick.due_at),
        "outcome": str(tick.outcome),
        "is_manual": tick.is_manual,
        "job_id": tick.job_ulid,
        "missed_before": format_timestamp(tick.missed_before),
        "error_code": tick.error_code or None,
        "message": tick.message or None,
        "created_at": format_timestamp(tick.created_at),
    }
