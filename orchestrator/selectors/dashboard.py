"""Reads the numbers of the dashboard of document 004 with six bounded statements, for one tenant, several or all."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.db.models import Q

from leases.models import Breaker, BreakerState, Limit, LimitScope
from leases.models.limits import TEMPORARY_KINDS
from orchestrator.incidents.models import Incident
from runtime_jobs.specs import JOB_TYPES

MAX_LANES, MAX_QUEUED, MAX_BLOCKED, MAX_ENDED = 2_000, 50_000, 10_000, 10_000
MAX_ROWS = 50  # of pauses and throttles, of breakers, of incidents
MAX_INCIDENTS = 1_000  # counted
WINDOW = timedelta(hours=1)
STATEMENT_TIMEOUT = "2s"


class PresentJobs(NamedTuple):
    """Jobs of one type in one state that have not ended.

    Attributes:
        job_type: The job type.
        state: The state.
        number: The number of jobs.
        throttled: How many of them are queued and stopped now by a limit, rate, pause or breaker.
        oldest: When the oldest was created.
    """

    job_type: str
    state: str
    number: int
    throttled: int
    oldest: datetime


class EndedJobs(NamedTuple):
    """Jobs of one type that ended in the last hour in one state and for one reason.

    Attributes:
        job_type: The job type.
        state: The final state.
        reason: The reason of a failure, else an empty text.
        number: The number of jobs.
        queue_seconds: The sum of the seconds that they were queued.
        run_seconds: The sum of the seconds on their workers.
    """

    job_type: str
    state: str
    reason: str
    number: int
    queue_seconds: float
    run_seconds: float


@dataclass(frozen=True)
class DashboardNumbers:
    """The numbers of a dashboard.

    Attributes:
        measured_at: The time of the database.
        present: Jobs that have not ended, by type and state.
        ended: Jobs that ended in the last hour, by type, state and reason.
        restrictions: Pauses and throttles, the newest first.
        breakers: Breakers that are not closed.
        incidents: Incidents that are not resolved, the newest first, up to `MAX_ROWS`.
        incident_count: Their number, counted up to `MAX_INCIDENTS`.
    """

    measured_at: datetime
    present: list[PresentJobs]
    ended: list[EndedJobs]
    restrictions: list[Limit]
    breakers: list[Breaker]
    incidents: list[Incident]
    incident_count: int


def read_dashboard(organizations: Collection[str] | None) -> DashboardNumbers:
    """Read the numbers of these organizations, or of all of them.

    The jobs of all organizations that have ended are found among the newest `MAX_ENDED` of each final status.

    Args:
        organizations: The slugs, or None.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp(), set_config('statement_timeout', %s, true)", [STATEMENT_TIMEOUT])
        now = cursor.fetchone()[0]
        values: dict[str, Any] = {
            "organizations": None if organizations is None else list(organizations),
            "types": list(JOB_TYPES),
            "since": now - WINDOW,
            "max_lanes": MAX_LANES,
            "max_queued": MAX_QUEUED,
            "max_blocked": MAX_BLOCKED,
            "max_ended": MAX_ENDED,
        }
        cursor.execute(_sql("present"), values)
        present = [PresentJobs(*row) for row in cursor.fetchall()]
        cursor.execute(_sql("ended" if organizations is not None else "ended_of_all"), values)
        ended = [EndedJobs(*row) for row in cursor.fetchall()]
        incidents = list(_of(Incident.objects.filter(resolved_at=None), organizations).order_by("-pk")[:MAX_INCIDENTS])
        breakers = _of(Breaker.objects.exclude(state=BreakerState.CLOSED), organizations).order_by("-pk")[:MAX_ROWS]
        restrictions = _restrictions(organizations, now)
        return DashboardNumbers(now, present, ended, restrictions, list(breakers), incidents[:MAX_ROWS], len(incidents))


def _restrictions(organizations: Collection[str] | None, now: datetime) -> list[Limit]:
    """Return pauses and throttles of organizations, job types and projects. Operators see those of job types in all."""
    active = Limit.objects.filter(Q(until=None) | Q(until__gt=now), kind__in=TEMPORARY_KINDS)
    named = active.filter(scope__in=(LimitScope.ORGANIZATION, LimitScope.PROJECT, LimitScope.JOB_TYPE))
    return list(_of(named, organizations).order_by("-set_at", "-pk")[:MAX_ROWS])


def _of(rows: Any, organizations: Collection[str] | None) -> Any:
    return rows if organizations is None else rows.filter(org_slug__in=organizations)


@cache
def _sql(name: str) -> str:
    return (Path(__file__).parent / "sql" / f"dashboard_{name}.sql").read_text()
