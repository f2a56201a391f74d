"""The filters of the list of jobs. All of them combine."""

from datetime import timedelta
from typing import Any, ClassVar, cast

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.contrib.filters.admin import DropdownFilter

from orchestrator.admin.filters import (
    ChoiceFilter,
    CreatedFilter,
    MultipleChoiceFilter,
    OrganizationFilter,
    ProjectFilter,
    TriggerFilter,
    exact_filter,
    multiple_choice_filter,
    without_nul,
)
from orchestrator.admin.formatting import humanize
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import JobQuerySet
from runtime_jobs.states import LEASED_STATES, FailureReason, JobState
from workers.models import Pool

# The API has two statuses for a job that has succeeded: `uploaded` if its results are in ingest, otherwise `succeeded`.
_STATUSES = {
    "queued": ("queued",),
    "running": ("running",),
    "succeeded": ("succeeded", "uploaded"),
    "failed": ("failed",),
    "canceled": ("canceled",),
}
TABS = list(_STATUSES)


def only_failed(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Select failed jobs in the terms of two indexes: by the status, and by the time of the end."""
    return cast("JobQuerySet", jobs).with_status("failed").filter(state=JobState.FAILED)


class StatusFilter(MultipleChoiceFilter):
    """Filters by status, with one name for both kinds of success."""

    title = "status"
    parameter_name = "status"
    options: ClassVar = [(status, status.capitalize()) for status in _STATUSES]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        statuses = [stored for status in self.chosen for stored in _STATUSES[status]]
        if self.chosen == ["failed"]:
            return only_failed(queryset)
        return cast("JobQuerySet", queryset).with_status(*statuses) if statuses else queryset


JobStateFilter = multiple_choice_filter(
    "state", "state", [(str(state), humanize(state).capitalize()) for state in JobState]
)


class JobPoolFilter(ChoiceFilter):
    """Filters by pool. Accepts a pool that is not registered as well: jobs may be queued for one."""

    title = "pool"
    parameter_name = "pool"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(slug, slug) for slug in Pool.objects.order_by("slug").values_list("slug", flat=True)[:200]]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        pool = without_nul(self.value())
        return queryset.filter(pool=pool) if pool else queryset


class FailureReasonFilter(MultipleChoiceFilter):
    """Filters by failure reason. Adds the status, which has an index; the reason has none."""

    title = "failure reason"
    parameter_name = "failure_reason"
    options: ClassVar = [(reason, humanize(reason).capitalize()) for reason in FailureReason.values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        found = super().queryset(request, queryset)
        return found if found is queryset else only_failed(found)


class CancelFilter(DropdownFilter):
    """Filters by cancel request. `overdue`: the worker has not stopped the job within the deadline."""

    title = "cancel requested"
    parameter_name = "cancel"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Yes"), ("no", "No"), ("overdue", "Cancel overdue")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.value() == "overdue":
            return queryset.filter(state__in=LEASED_STATES, cancel_deadline_at__lte=ClockTimestamp())
        if self.value() in {"yes", "no"}:
            return queryset.filter(cancel_requested_at__isnull=self.value() == "no")
        return queryset


class FinishedFilter(DropdownFilter):
    """Filters by the time since the end of the job."""

    title = "finished"
    parameter_name = "ended"
    hours: ClassVar = {"1h": 1, "24h": 24, "7d": 168}

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("1h", "Last hour"), ("24h", "Last 24 hours"), ("7d", "Last 7 days")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if (hours := self.hours.get(self.value() or "")) is None:
            return queryset
        # A value and no function: the planner then knows how many rows that are, and an index finds them.
        return queryset.filter(finished_at__gte=timezone.now() - timedelta(hours=hours))


class AttemptFilter(DropdownFilter):
    """Filters by attempt, and by more than one lease of the same attempt."""

    title = "attempt"
    parameter_name = "attempts"
    conditions: ClassVar = {"first": Q(attempt=1), "retries": Q(attempt__gt=1), "requeued": Q(fence__gt=1)}

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("first", "First attempts"), ("retries", "Retries"), ("requeued", "Redelivered")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(self.conditions.get(self.value() or "", Q()))


FILTERS = [
    StatusFilter,
    JobStateFilter,
    OrganizationFilter,
    ProjectFilter,
    JobPoolFilter,
    TriggerFilter,
    FailureReasonFilter,
    CancelFilter,
    AttemptFilter,
    exact_filter("batch", "batch__batch_ulid"),
    FinishedFilter,
    CreatedFilter,
]
