"""What the list of jobs can be filtered by."""

import django_filters

from orchestrator.access.moments import MomentFilter
from orchestrator.protocols.native.requests import TRIGGER_KINDS
from runtime_jobs.models import Job
from runtime_jobs.states import STATUS

STATUSES = [(word, word) for word in dict.fromkeys(STATUS.values())]


class JobFilters(django_filters.FilterSet):
    org_slug = django_filters.CharFilter()
    project_slug = django_filters.CharFilter()
    status = django_filters.ChoiceFilter(choices=STATUSES)
    trigger_kind = django_filters.ChoiceFilter(choices=[(kind, kind) for kind in TRIGGER_KINDS])
    git_commit = django_filters.CharFilter()
    created_after = MomentFilter(field_name="created_at", lookup_expr="gt")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Job
        fields: list[str] = []
