"""Filters of the lists of jobs."""

from collections.abc import Iterable

import django_filters

from orchestrator.core.datetimes import TimestampFilter
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import JobQuerySet
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import STATUS, STATUS_WITHOUT_INGEST, TRIGGER_KINDS


def _choices(values: Iterable[str]) -> list[tuple[str, str]]:
    return [(value, value) for value in dict.fromkeys(values)]


class RuntimeJobFilters(django_filters.FilterSet):
    """Filters of `GET /v1/runtime/jobs`."""

    org_slug = django_filters.CharFilter(method="filter_organization")
    project_slug = django_filters.CharFilter()
    status = django_filters.ChoiceFilter(choices=_choices(STATUS.values()), method="filter_status")
    trigger_kind = django_filters.ChoiceFilter(choices=_choices(TRIGGER_KINDS))
    git_commit = django_filters.CharFilter()
    created_after = TimestampFilter(field_name="created_at", lookup_expr="gt")
    created_before = TimestampFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Job
        fields: list[str] = []

    def filter_queryset(self, queryset: JobQuerySet) -> JobQuerySet:
        jobs: JobQuerySet = super().filter_queryset(queryset)
        by_time = any(self.form.cleaned_data.get(name) for name in ("created_after", "created_before"))
        return jobs.through_partial_indexes() if by_time else jobs

    def filter_organization(self, jobs: JobQuerySet, _name: str, slug: str) -> JobQuerySet:
        return jobs.of_organizations([slug])

    def filter_status(self, jobs: JobQuerySet, _name: str, status: str) -> JobQuerySet:
        return jobs.with_status(status)


class AnyJobFilters(RuntimeJobFilters):
    """Filters of `GET /v1/jobs`."""

    status = django_filters.ChoiceFilter(
        choices=_choices([*STATUS.values(), *STATUS_WITHOUT_INGEST.values()]), method="filter_status"
    )
    job_type = django_filters.ChoiceFilter(choices=_choices(JOB_TYPES))
    # A key may begin or end with spaces.
    idempotency_key = django_filters.CharFilter(method="filter_idempotency_key", max_length=255, strip=False)
    batch_id = django_filters.CharFilter(field_name="batch__batch_ulid")

    def filter_idempotency_key(self, jobs: JobQuerySet, _name: str, key: str) -> JobQuerySet:
        return jobs.of_idempotency_key(key)
