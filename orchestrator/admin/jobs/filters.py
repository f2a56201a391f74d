"""What the list of jobs can be narrowed by; all combine."""

from datetime import timedelta
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter

from orchestrator.admin.filters import AnyOf, OneOf, any_of, days, exactly, one_of, without_nul
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES, STATUS, STATUS_WITHOUT_INGEST, FailureReason, JobState
from workers.models import Pool

WORDS = list(dict.fromkeys([*STATUS.values(), *STATUS_WITHOUT_INGEST.values()]))


class InPool(OneOf):
    title = "pool"
    parameter_name = "pool"
    parameters: ClassVar = ("pool",)

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(slug, slug) for slug in Pool.objects.order_by("slug").values_list("slug", flat=True)[:200]]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Also one that is not offered: jobs may wait in a pool that nobody has registered."""
        pool = without_nul(self.value())
        return queryset.filter(pool=pool) if pool else queryset


class Failure(AnyOf):
    """Says that it failed, too: the reason has no index, the status has."""

    title = "failure"
    parameter_name = "failure_reason"
    parameters: ClassVar = ("failure_reason",)
    values: ClassVar = [(reason, reason.replace("_", " ")) for reason in FailureReason.values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        found = super().queryset(request, queryset)
        return found if found is queryset else found.filter(status="failed")


class Canceling(DropdownFilter):
    """`cancel=overdue`: the holder did not obey in time, and the clock has not ended it yet."""

    title = "cancel requested"
    parameter_name = "cancel"
    parameters: ClassVar = ("cancel",)

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Yes"), ("no", "No"), ("overdue", "Not obeyed in time")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.value() == "overdue":
            return queryset.filter(state__in=LEASED_STATES, cancel_deadline_at__lte=ClockTimestamp())
        if self.value() in {"yes", "no"}:
            return queryset.filter(cancel_requested_at__isnull=self.value() == "no")
        return queryset


class Ended(DropdownFilter):
    """Within the last hours. By its creation first, which has an index."""

    title = "ended"
    parameter_name = "ended"
    parameters: ClassVar = ("ended",)
    hours: ClassVar = {"1h": 1, "24h": 24, "7d": 168}

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("1h", "In the last hour"), ("24h", "In the last 24 hours"), ("7d", "In the last 7 days")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if (hours := self.hours.get(self.value() or "")) is None:
            return queryset
        return queryset.filter(finished_at__gte=ClockTimestamp() - timedelta(hours=hours))


class Attempts(DropdownFilter):
    title = "attempt"
    parameter_name = "attempts"
    parameters: ClassVar = ("attempts",)

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("first", "First attempts"), ("retries", "Retries"), ("requeued", "Handed out more than once")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        chosen = {
            "first": Q(attempt=1),
            "retries": Q(attempt__gt=1),
            "requeued": Q(fence__gt=1),
        }
        return queryset.filter(chosen.get(self.value() or "", Q()))


FILTERS = [
    any_of("status", "status", [(word, word) for word in WORDS]),
    any_of("state", "state", list(JobState.choices)),
    exactly("org_slug", "organization"),
    exactly("project_slug", "project"),
    InPool,
    one_of("trigger_kind", "trigger", [("manual", "manual"), ("pull_request", "pull request"), ("push", "push")]),
    Failure,
    Canceling,
    Attempts,
    exactly("batch__batch_ulid", "batch"),
    Ended,
    days("created_at", "created"),
]
