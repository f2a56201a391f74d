"""`/v1/quotas`: how many jobs organizations may have waiting, how fast they may submit, and what they have used."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.scheduling.submit_quotas import room_of, waiting_jobs
from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.permissions import requires_scope
from orchestrator.http.auth.principals import client_of
from orchestrator.protocols.native.examples import answered
from runtime_jobs.models import Organization
from runtime_jobs.models.tenants import Scope


class QuotaShown(serializers.Serializer):
    org_slug = serializers.CharField()
    plan = serializers.CharField()
    queued = serializers.IntegerField(help_text="Jobs that wait now, for a worker or for other jobs.")
    max_queued = serializers.IntegerField(allow_null=True, help_text="Null: any number.")
    submits_per_minute = serializers.IntegerField(allow_null=True, help_text="Null: any number.")
    submit_burst = serializers.IntegerField(allow_null=True, help_text="So many at once after a pause.")
    refused = serializers.CharField(
        allow_null=True, help_text="The code with which the next submit would be refused now. Null: none."
    )
    retry_after = serializers.IntegerField(allow_null=True, help_text="Seconds until a submit is worth a try.")


_QUOTA = {
    "org_slug": "sandtrace",
    "plan": "team",
    "queued": 42,
    "max_queued": 10000,
    "submits_per_minute": 6000,
    "submit_burst": 2000,
    "refused": None,
    "retry_after": None,
}
_DOCUMENTED = extend_schema_view(
    list=operation_docs(
        "list_quotas", responses=QuotaShown(many=True), examples=[answered("a quota", _QUOTA)], codes=()
    )
)


@_DOCUMENTED
class QuotaViewSet(StrictQueryMixin, GenericViewSet):
    """The submit quotas of the organizations that the caller may see."""

    http_method_names = ["get", "head"]
    filter_backends: list[Any] = []

    def query_parameters(self) -> frozenset[str]:
        return frozenset({"limit", "cursor"})

    def get_permissions(self) -> list[Any]:
        return [requires_scope(Scope.ORCH_READ)()]

    def get_queryset(self) -> QuerySet[Organization]:
        if getattr(self, "swagger_fake_view", False):
            return Organization.objects.none()
        mine = client_of(self.request).organizations
        organizations = Organization.objects.select_related("plan")
        return organizations if mine is None else organizations.filter(slug__in=mine)

    def list(self, request: Request) -> Response:
        """The organizations, newest first, each with what its plan lets it submit and how many of its jobs wait."""
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response([shown(row) for row in page or []])


def shown(organization: Organization) -> dict[str, Any]:
    room = room_of(organization)
    refusal = room.refusal()
    return {
        "org_slug": organization.slug,
        "plan": organization.plan.name,
        "queued": waiting_jobs(organization.slug),
        "max_queued": room.terms.max_queued,
        "submits_per_minute": room.terms.per_minute,
        "submit_burst": None if room.terms.per_minute is None else room.terms.burst,
        "refused": refusal.code if refusal else None,
        "retry_after": refusal.facts["retry_after"] if refusal else None,
    }
