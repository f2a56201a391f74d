"""Filters of the lists of batches and checks."""

import django_filters
from django.db.models import Q, QuerySet

from orchestrator.core.datetimes import TimestampFilter
from orchestrator.protocols.native.batches.wire import CHECK_STATUSES
from orchestrator.workflows.run_reads import JOB_STATES
from runtime_jobs.models import Batch, Job, WorkflowEvent


def _of_repository(path: str, full_name: str) -> Q:
    owner, _, name = full_name.partition("/")
    return Q(**{f"{path}__owner__iexact": owner, f"{path}__name__iexact": name})


class BatchFilters(django_filters.FilterSet):
    """Filters of `GET /v1/batches`. Those of repository, file and event leave out batches without a workflow run."""

    org_slug = django_filters.CharFilter()
    project_slug = django_filters.CharFilter()
    git_commit = django_filters.CharFilter()
    repository = django_filters.CharFilter(method="filter_repository")
    workflow_file = django_filters.CharFilter(field_name="workflow_run__workflow_file")
    event = django_filters.ChoiceFilter(field_name="workflow_run__event", choices=WorkflowEvent.choices)
    created_after = TimestampFilter(field_name="created_at", lookup_expr="gt")
    created_before = TimestampFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Batch
        fields: list[str] = []

    def filter_repository(self, batches: QuerySet[Batch], _name: str, full_name: str) -> QuerySet[Batch]:
        return batches.filter(_of_repository("workflow_run__repository", full_name))


class CheckFilters(django_filters.FilterSet):
    """Filters of `GET /v1/checks`."""

    org_slug = django_filters.CharFilter()
    project_slug = django_filters.CharFilter()
    repository = django_filters.CharFilter(method="filter_repository")
    head_sha = django_filters.CharFilter(field_name="batch__workflow_run__head_sha")
    workflow_file = django_filters.CharFilter(field_name="batch__workflow_run__workflow_file")
    batch_id = django_filters.CharFilter(field_name="batch__batch_ulid")
    status = django_filters.ChoiceFilter(
        choices=[(word, word) for word in CHECK_STATUSES.values()], method="filter_status"
    )
    created_after = TimestampFilter(field_name="created_at", lookup_expr="gt")
    created_before = TimestampFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Job
        fields: list[str] = []

    def filter_repository(self, jobs: QuerySet[Job], _name: str, full_name: str) -> QuerySet[Job]:
        return jobs.filter(_of_repository("batch__workflow_run__repository", full_name))

    def filter_status(self, jobs: QuerySet[Job], _name: str, word: str) -> QuerySet[Job]:
        status = next(status for status, found in CHECK_STATUSES.items() if found == word)
        return jobs.filter(state__in=JOB_STATES[status])
