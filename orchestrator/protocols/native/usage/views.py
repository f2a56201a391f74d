"""Views of `/v1/usage`."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.datetimes import TimestampFilter
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.base_view import OrganizationViewSet
from orchestrator.protocols.native.usage import openapi
from orchestrator.protocols.native.usage.wire import serialize_usage
from runtime_jobs.models import UsageRecord
from runtime_jobs.models.tenants import Scope


class UsageFilters(django_filters.FilterSet):
    """Filters of `GET /v1/usage`."""

    org_slug = django_filters.CharFilter()
    project_slug = django_filters.CharFilter()
    job_id = django_filters.CharFilter(field_name="job_ulid")
    recorded_after = TimestampFilter(field_name="recorded_at", lookup_expr="gt")
    recorded_before = TimestampFilter(field_name="recorded_at", lookup_expr="lt")

    class Meta:
        model = UsageRecord
        fields: list[str] = []


class UsageViewSet(OrganizationViewSet):
    """The ledger of billed minutes of the organizations that the caller may see. No operation changes it."""

    http_method_names = ["get", "head"]
    filterset_class = UsageFilters
    organization_slug = "org_slug"

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ)]

    def all_rows(self) -> QuerySet[UsageRecord]:
        return UsageRecord.objects.all()

    @openapi.LIST_USAGE
    def list(self, request: Request) -> Response:
        """List usage records, newest first. The minutes of a job are the sum of its records."""
        return self.list_rows(serialize_usage)
