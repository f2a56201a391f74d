"""Schedules for tests, made by the operations."""

from datetime import UTC, datetime
from typing import Any

from orchestrator.core.cause import Cause
from orchestrator.core.row_batches import RowRunner
from orchestrator.http.api.schedule_jobs import configured_submitter
from orchestrator.schedules.due import submit_due_jobs
from orchestrator.schedules.models import Schedule, ScheduleTick
from orchestrator.schedules.operations import ScheduleTerms, create_schedule
from runtime_jobs.models import Organization
from tests.factories import ALICE, OrganizationFactory, ProjectFactory

JOB = {"project_slug": "web", "job_type": "scan", "spec": {"payload": {"imageRef": "nginx"}, "timeout_seconds": 300}}
NOON = datetime(2026, 5, 11, 12, tzinfo=UTC)  # a Monday


def make_schedule(organization: Organization | None = None, *, now: datetime = NOON, **terms: Any) -> Schedule:
    """A schedule of each minute, unless the terms differ. Its organization has a project."""
    organization = organization or OrganizationFactory(slug="sandtrace")
    ProjectFactory(organization=organization)
    values = {"name": "each minute", "cron": "* * * * *", "job": JOB} | terms
    return create_schedule(organization=organization, terms=ScheduleTerms(**values), cause=Cause(ALICE, now=now))[0]


def run_round(now: datetime) -> int:
    """One round of the scheduler's task at this time."""
    return submit_due_jobs(RowRunner(), submitter=configured_submitter(), now=now)


def outcomes(schedule: Schedule) -> list[tuple[str, str]]:
    """The outcome of each time of a schedule, in their order: the time as HH:MM, and the outcome."""
    ticks = ScheduleTick.objects.filter(schedule=schedule).order_by("id")
    return [(tick.due_at.strftime("%H:%M"), str(tick.outcome)) for tick in ticks]
