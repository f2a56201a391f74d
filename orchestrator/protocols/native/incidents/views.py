"""Views of `/v1/incidents` (list, read, acknowledge, resolve) and `/v1/incident-modes` (list, begin, end)."""

from collections.abc import Callable
from typing import Any

import django_filters
from django.db.models import BigIntegerField, Case, F, QuerySet, Value, When
from django.utils import timezone
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.pagination import NewestFirst
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.incidents import incident_mode
from orchestrator.incidents.models import Incident, IncidentKind, IncidentMode, IncidentStatus
from orchestrator.incidents.operations import acknowledge_incident, resolve_incident
from orchestrator.protocols.native.incidents import openapi
from orchestrator.protocols.native.incidents.serializers import (
    BeginIncidentModeInput,
    EndIncidentModeInput,
    IncidentReasonInput,
)
from orchestrator.protocols.native.incidents.wire import serialize_incident, serialize_incident_mode
from orchestrator.protocols.native.organizations import visible_organization
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import JOB_TYPES

UNRESOLVED_OFFSET = 2**40  # higher than any id, so that unresolved incidents sort first


class IncidentFilters(django_filters.FilterSet):
    """Filters of `GET /v1/incidents`."""

    org_slug = django_filters.CharFilter()
    job_type = django_filters.ChoiceFilter(choices=[(name, name) for name in JOB_TYPES])
    kind = django_filters.ChoiceFilter(choices=[(str(kind), str(kind)) for kind in IncidentKind])
    job_id = django_filters.CharFilter(field_name="job_ulid")
    state = django_filters.ChoiceFilter(
        choices=[(str(status), str(status)) for status in IncidentStatus],
        method="filter_state",
        label="Open incidents, acknowledged or resolved ones.",
    )

    class Meta:
        model = Incident
        fields: list[str] = []

    def filter_state(self, rows: Any, _name: str, state: str) -> QuerySet[Incident]:
        found: QuerySet[Incident] = rows.with_status(state)
        return found


class OpenFirst(NewestFirst):
    """Unresolved incidents, then resolved ones, each newest first. One column holds the order, for the cursor."""

    ordering = "-sort_key"


class IncidentViewSet(StrictQueryMixin, GenericViewSet):
    """Incidents of the organizations that the caller may see."""

    lookup_field = "incident_ulid"
    lookup_url_kwarg = "incident_id"
    lookup_value_regex = openapi.INCIDENT_ID_PATTERN
    http_method_names = ["get", "head", "post"]
    filterset_class = IncidentFilters
    pagination_class = OpenFirst

    def query_parameters(self) -> frozenset[str]:
        return LIST_PARAMETERS | set(IncidentFilters.base_filters) if self.action == "list" else frozenset()

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ if self.action in {"list", "retrieve"} else Scope.ORCH_OPERATE)]

    def get_queryset(self) -> QuerySet[Incident]:
        if getattr(self, "swagger_fake_view", False):
            return Incident.objects.none()
        organizations, rows = client_of(self.request).organizations, Incident.objects.all()
        visible = rows if organizations is None else rows.filter(org_slug__in=organizations)
        offset = Value(UNRESOLVED_OFFSET, output_field=BigIntegerField())  # a plain int is sent with 32 bits
        is_unresolved = When(resolved_at=None, then=F("id") + offset)
        return visible.annotate(sort_key=Case(is_unresolved, default=F("id"), output_field=BigIntegerField()))

    @openapi.LIST_INCIDENTS
    def list(self, request: Request) -> Response:
        """List incidents: unresolved ones first, then resolved ones, each newest first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([serialize_incident(incident) for incident in page or []])

    @openapi.GET_INCIDENT
    def retrieve(self, request: Request, incident_id: str) -> Response:
        """Return one incident."""
        return Response(serialize_incident(self.get_object()))

    @openapi.ACKNOWLEDGE_INCIDENT
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, incident_id: str) -> Response:
        """Record that a person works on the incident. A second call changes nothing."""
        return self._change(request, acknowledge_incident)

    @openapi.RESOLVE_INCIDENT
    @action(detail=True, methods=["post"])
    def resolve(self, request: Request, incident_id: str) -> Response:
        """Resolve the incident. Its job stays failed. A second call changes nothing."""
        return self._change(request, resolve_incident)

    def _change(self, request: Request, operation: Callable[..., Incident]) -> Response:
        body = IncidentReasonInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        incident: Incident = self.get_object()
        cause = cause_of(request, body.validated_data["reason"])
        return Response(serialize_incident(operation(incident_ulid=incident.incident_ulid, cause=cause)))


class IncidentModeViewSet(StrictQueryMixin, GenericViewSet):
    """Incident modes of the organizations that the caller may see."""

    http_method_names = ["get", "head", "post"]
    filter_backends: list[Any] = []

    def query_parameters(self) -> frozenset[str]:
        return LIST_PARAMETERS if self.action == "list" else frozenset()

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ if self.action == "list" else Scope.ORCH_OPERATE)]

    def get_queryset(self) -> QuerySet[IncidentMode]:
        if getattr(self, "swagger_fake_view", False):
            return IncidentMode.objects.none()
        organizations, rows = (
            client_of(self.request).organizations,
            IncidentMode.objects.filter(until__gt=timezone.now()),
        )
        return rows if organizations is None else rows.filter(org_slug__in=organizations)

    @openapi.LIST_INCIDENT_MODES
    def list(self, request: Request) -> Response:
        """List the organizations in incident mode, the newest first."""
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response([serialize_incident_mode(mode) for mode in page or []])

    @openapi.BEGIN_INCIDENT_MODE
    def create(self, request: Request) -> Response:
        """Put an organization into incident mode, or change the end and the reason of its mode."""
        body = BeginIncidentModeInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        validated = body.validated_data
        visible_organization(client_of(request), validated["org_slug"])
        mode = incident_mode.begin_incident_mode(
            org_slug=validated["org_slug"], until=validated["until"], cause=cause_of(request, validated["reason"])
        )
        return Response(serialize_incident_mode(mode))

    @openapi.END_INCIDENT_MODE
    @action(detail=False, methods=["post"])
    def end(self, request: Request) -> Response:
        """End the incident mode of an organization now."""
        body = EndIncidentModeInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        org_slug = body.validated_data["org_slug"]
        visible_organization(client_of(request), org_slug)
        incident_mode.end_incident_mode(org_slug=org_slug, cause=cause_of(request, body.validated_data["reason"]))
        return Response(status=204)
