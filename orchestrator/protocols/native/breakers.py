"""`/v1/breakers`, `/v1/incidents`: which jobs are held back because too many of them failed."""

from typing import Any

import django_filters
from django.db.models import BigIntegerField, Case, F, QuerySet, Value, When
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.models import Breaker, BreakerState
from orchestrator import services
from orchestrator.http.api.filtering import OF_EVERY_LIST
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.pagination import NewestFirst
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.permissions import requires_scope
from orchestrator.http.auth.principals import client_of
from orchestrator.models import Incident
from orchestrator.protocols.native import control_operations as operations
from orchestrator.protocols.native import control_wire
from orchestrator.protocols.native.control_requests import ResetBreaker
from orchestrator.protocols.native.holding import operator_kwargs
from orchestrator.protocols.native.subjects import require_organization
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import JOB_TYPES

AHEAD = 2**40  # more than there are incidents


class _OfOrganizations(StrictQueryMixin, GenericViewSet):
    """Rows that carry the slug of their organization."""

    http_method_names = ["get", "head", "post"]
    model: Any
    filterset_class: Any

    def query_parameters(self) -> frozenset[str]:
        return OF_EVERY_LIST | set(self.filterset_class.base_filters) if self.action == "list" else frozenset()

    def get_permissions(self) -> list[Any]:
        return [requires_scope(Scope.ORCH_READ if self.action == "list" else Scope.ORCH_OPERATE)()]

    def get_queryset(self) -> QuerySet[Any]:
        if getattr(self, "swagger_fake_view", False):
            return self.model.objects.none()
        mine, rows = client_of(self.request).organizations, self.model.objects.all()
        return rows if mine is None else rows.filter(org_slug__in=mine)


class BreakerFilters(django_filters.FilterSet):
    org_slug = django_filters.CharFilter()
    job_type = django_filters.ChoiceFilter(choices=[(name, name) for name in JOB_TYPES])
    state = django_filters.ChoiceFilter(choices=[(str(state), str(state)) for state in BreakerState])

    class Meta:
        model = Breaker
        fields: list[str] = []


class BreakerViewSet(_OfOrganizations):
    model = Breaker
    filterset_class = BreakerFilters

    @operations.LIST_BREAKERS
    def list(self, request: Request) -> Response:
        """The breakers, newest first. One that never had to look at a failure is not there."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([control_wire.breaker(row) for row in page or []])

    @operations.RESET_BREAKER
    @action(detail=False, methods=["post"])
    def reset(self, request: Request) -> Response:
        """Close a breaker at once; what has failed so far counts no more."""
        body = ResetBreaker(data=body_of(request))
        body.is_valid(raise_exception=True)
        sent = body.validated_data
        require_organization(client_of(request), sent["org_slug"])
        row = services.reset_breaker(
            org_slug=sent["org_slug"], job_type=sent["job_type"], **operator_kwargs(request, sent["reason"])
        )
        return Response(control_wire.breaker(row))


class IncidentFilters(django_filters.FilterSet):
    org_slug = django_filters.CharFilter()
    job_type = django_filters.ChoiceFilter(choices=[(name, name) for name in JOB_TYPES])
    state = django_filters.ChoiceFilter(
        choices=[("open", "open"), ("resolved", "resolved")], method="in_state", label="Whether it is resolved."
    )

    class Meta:
        model = Incident
        fields: list[str] = []

    def in_state(self, rows: QuerySet[Incident], _name: str, state: str) -> QuerySet[Incident]:
        return rows.filter(resolved_at__isnull=state == "open")


class OpenFirst(NewestFirst):
    """Then the newest first. One column, so that a cursor can name a place."""

    ordering = "-place"


class IncidentViewSet(_OfOrganizations):
    model = Incident
    filterset_class = IncidentFilters
    pagination_class = OpenFirst

    def get_queryset(self) -> QuerySet[Incident]:
        ahead = Value(AHEAD, output_field=BigIntegerField())  # a plain one is sent with 32 bits
        open_ones = When(resolved_at=None, then=F("id") + ahead)
        place = Case(open_ones, default=F("id"), output_field=BigIntegerField())
        return super().get_queryset().annotate(place=place)

    @operations.LIST_INCIDENTS
    def list(self, request: Request) -> Response:
        """The incidents, open ones first, then the newest."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([control_wire.incident(row) for row in page or []])
