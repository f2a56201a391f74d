"""Filters of `GET /api/jobs`."""

from collections.abc import Iterable
from typing import Any, Final

import django_filters
from django import forms
from django.core.exceptions import ValidationError

from orchestrator.core.datetimes import TimestampFilter
from orchestrator.protocols.stella.visible_jobs import is_uuid, job_ulid_of
from orchestrator.selectors.job_incidents import has_open_incident
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import JobQuerySet
from runtime_jobs.orchestration_status import OrchestrationStatus
from runtime_jobs.priorities import EMERGENCY, PRIORITIES
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import JobState

# The four priorities of the document, each with the lowest number that it contains. Plans have numbers of their own.
LEVELS: Final[dict[str, int]] = {
    "emergency": EMERGENCY,
    "high": PRIORITIES["high"],
    "normal": PRIORITIES["free"],
    "low": -(2**31),
}
# The words of the native API by which the partial indexes find the jobs of a status.
_INDEXED: Final[dict[str, tuple[str, ...]]] = {
    OrchestrationStatus.RUNNING: ("running",),
    OrchestrationStatus.FAILED: ("failed",),
    OrchestrationStatus.INCIDENT: ("failed",),
    OrchestrationStatus.CANCELED: ("canceled",),
}
_STATES: Final[dict[str, JobState]] = {
    OrchestrationStatus.CREATED: JobState.BLOCKED,
    OrchestrationStatus.QUEUED: JobState.QUEUED,
    OrchestrationStatus.THROTTLED: JobState.QUEUED,
    OrchestrationStatus.LEASED: JobState.LEASED,
}


def level_of(priority: int) -> str:
    """Return the document's name of a priority."""
    return next(name for name, lowest in LEVELS.items() if priority >= lowest)


def _choices(values: Iterable[str]) -> list[tuple[str, str]]:
    return [(value, value) for value in dict.fromkeys(values)]


class JobUuidField(forms.Field):
    """Form field of `JobUuidFilter`."""

    def to_python(self, value: Any) -> str | None:
        if value in self.empty_values:
            return None
        if not is_uuid(value):
            raise ValidationError("Must be a UUID, such as 01890a5d-ac96-774b-bcce-b302099a8057.")
        return job_ulid_of(value)


class JobUuidFilter(django_filters.Filter):
    """Filters by the UUID of a job."""

    field_class = JobUuidField


class OrchestrationJobFilters(django_filters.FilterSet):
    """Filters of the list. The view resolves `tenant`, and checks `status` for each job again.

    Completed jobs are selected by `index_parts` alone: a condition of theirs here, too, would count twice in the
    planner's estimate. It expected 56 of 100,000 such jobs, and read and sorted all of them for a page.
    """

    tenant = django_filters.CharFilter(method="keep_all")
    jobType = django_filters.ChoiceFilter(field_name="job_type", choices=_choices(JOB_TYPES))  # noqa: N815 the document's name
    status = django_filters.ChoiceFilter(choices=_choices(OrchestrationStatus.values), method="filter_status")
    priority = django_filters.ChoiceFilter(choices=_choices(reversed(LEVELS)), method="filter_priority")
    correlationId = django_filters.CharFilter(field_name="correlation_id", max_length=64)  # noqa: N815 the document's name
    # A key may begin or end with spaces.
    idempotencyKey = django_filters.CharFilter(  # noqa: N815 the document's name
        method="filter_idempotency_key", max_length=255, strip=False
    )
    replayOf = JobUuidFilter(field_name="replay_of_job_ulid")  # noqa: N815 the document's name
    createdAfter = TimestampFilter(field_name="created_at", lookup_expr="gt")  # noqa: N815 the document's name
    createdBefore = TimestampFilter(field_name="created_at", lookup_expr="lt")  # noqa: N815 the document's name

    class Meta:
        model = Job
        fields: list[str] = []

    def filter_queryset(self, queryset: JobQuerySet) -> JobQuerySet:
        jobs: JobQuerySet = super().filter_queryset(queryset)
        through_parts = ("createdAfter", "createdBefore", "correlationId")
        return jobs.through_partial_indexes() if any(map(self.form.cleaned_data.get, through_parts)) else jobs

    def keep_all(self, jobs: JobQuerySet, _name: str, _slug: str) -> JobQuerySet:
        return jobs

    def filter_idempotency_key(self, jobs: JobQuerySet, _name: str, key: str) -> JobQuerySet:
        return jobs.of_idempotency_key(key, "root_job_ulid")

    def filter_status(self, jobs: JobQuerySet, _name: str, status: str) -> JobQuerySet:
        if status == OrchestrationStatus.COMPLETED:
            return jobs
        if status in _STATES:
            return jobs.filter(state=_STATES[status])
        found = jobs.with_status(*_INDEXED[status])
        if status == OrchestrationStatus.INCIDENT:
            return found.filter(has_open_incident())
        return found

    def filter_priority(self, jobs: JobQuerySet, _name: str, value: str) -> JobQuerySet:
        above = [lowest for lowest in LEVELS.values() if lowest > LEVELS[value]]
        found = jobs.filter(priority__gte=LEVELS[value])
        return found.filter(priority__lt=min(above)) if above else found
