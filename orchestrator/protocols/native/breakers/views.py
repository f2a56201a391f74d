"""Views of `/v1/breakers` and `/v1/incidents`."""

from typing import Any

import django_filters
from django.db.models import BigIntegerField, Case, F, QuerySet, Value, When
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.models import Breaker, BreakerState
from orchestrator import services
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.pagination import NewestFirst
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin
from orchestrator.http.auth.permissions import HasScope
from orchestrator.http.auth.principals import client_of
from orchestrator.models import Incident
from orchestrator.protocols.native.breakers import openapi
from orchestrator.protocols.native.breakers.serializers import ResetBreakerInput
from orchestrator.protocols.native.breakers.wire import serialize_breaker, serialize_incident
from orchestrator.protocols.native.limits.actions import audit_arguments
from orchestrator.protocols.native.limits.targets import require_organization
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import JOB_TYPES

OPEN_INCIDENT_OFFSET = 2**40  # higher than any id, so that open incidents sort first


class _OrganizationViewSet(StrictQueryMixin, GenericViewSet):
    """Base of the views of rows that have the slug of their organization."""

    http_method_names = ["get", "head", "post"]
    model: Any
    filterset_class: Any

    def query_parameters(self) -> frozenset[str]:
        return LIST_PARAMETERS | set(self.filterset_class.base_filters) if self.action == "list" else frozenset()

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ if self.action == "list" else Scope.ORCH_OPERATE)]

    def get_queryset(self) -> QuerySet[Any]:
        if getattr(self, "swagger_fake_view", False):
            return self.model.objects.none()
        organizations, rows = client_of(self.request).organizations, self.model.objects.all()
        return rows if organizations is None else rows.filter(org_slug__in=organizations)


class BreakerFilters(django_filters.FilterSet):
    """Filters of `GET /v1/breakers`."""

    org_slug = django_filters.CharFilter()
    job_type = django_filters.ChoiceFilter(choices=[(name, name) for name in JOB_TYPES])
    state = django_filters.ChoiceFilter(choices=[(str(state), str(state)) for state in BreakerState])

    class Meta:
        model = Breaker
        fields: list[str] = []


class BreakerViewSet(_OrganizationViewSet):
    """Breakers of the organizations that the caller may see."""

    model = Breaker
    filterset_class = BreakerFilters

    @openapi.LIST_BREAKERS
    def list(self, request: Request) -> Response:
        """List breakers, newest first. A breaker exists after the first failure that it counted."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([serialize_breaker(breaker) for breaker in page or []])

    @openapi.RESET_BREAKER
    @action(detail=False, methods=["post"])
    def reset(self, request: Request) -> Response:
        """Close a breaker now. Earlier failures no longer count."""
        body = ResetBreakerInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        validated = body.validated_data
        require_organization(client_of(request), validated["org_slug"])
        breaker = services.reset_breaker(
            org_slug=validated["org_slug"],
            job_type=validated["job_type"],
            **audit_arguments(request, validated["reason"]),
        )
        return Response(serialize_breaker(breaker))


class IncidentFilters(django_filters.FilterSet):
    """Filters of `GET /v1/incidents`."""

    org_slug = django_filters.CharFilter()
    job_type = django_filters.ChoiceFilter(choices=[(name, name) for name in JOB_TYPES])
    state = django_filters.ChoiceFilter(
        choices=[("open", "open"), ("resolved", "resolved")],
        method="filter_state",
        label="Open incidents, or resolved ones.",
    )

    class Meta:
        model = Incident
        fields: list[str] = []

    def filter_state(self, rows: QuerySet[Incident], _name: str, state: str) -> QuerySet[Incident]:
        return rows.filter(resolved_at__isnull=state == "open")


class OpenFirst(NewestFirst):
    """Open incidents, then resolved ones, each newest first. One column holds the order, for the cursor."""

    ordering = "-sort_key"


class IncidentViewSet(_OrganizationViewSet):
    """Incidents of the organizations that the caller may see."""

    model = Incident
    filterset_class = IncidentFilters
    pagination_class = OpenFirst

    def get_queryset(self) -> QuerySet[Incident]:
        offset = Value(OPEN_INCIDENT_OFFSET, output_field=BigIntegerField())  # a plain int is sent with 32 bits
        is_open = When(resolved_at=None, then=F("id") + offset)
        sort_key = Case(is_open, default=F("id"), output_field=BigIntegerField())
        return super().get_queryset().annotate(sort_key=sort_key)

    @openapi.LIST_INCIDENTS
    def list(self, request: Request) -> Response:
        """List incidents: open ones first, then resolved ones, each newest first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([serialize_incident(incident) for incident in page or []])
