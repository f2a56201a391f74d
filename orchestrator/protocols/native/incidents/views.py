"""Views of `/v1/incidents` (list, read, acknowledge, resolve) and `/v1/incident-modes` (list, begin, end)."""

from collections.abc import Callable
from typing import Any

import django_filters
from django.db.models import BigIntegerField, Case, F, QuerySet, Value, When
from django.utils import timezone
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.pagination import NewestFirst
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.incidents import incident_mode
from orchestrator.incidents.models import Incident, IncidentKind, IncidentMode, IncidentStatus
from orchestrator.incidents.operations import acknowledge_incident, resolve_incident
from orchestrator.protocols.native.base_view import OrganizationViewSet
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


class IncidentViewSet(OrganizationViewSet):
    """Incidents of the organizations that the caller may see."""

    lookup_field = "incident_ulid"
    lookup_url_kwarg = "incident_id"
    lookup_value_regex = openapi.INCIDENT_ID_PATTERN
    http_method_names = ["get", "head", "post"]
    filterset_class = IncidentFilters
    organization_slug = "org_slug"
    pagination_class = OpenFirst

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ if self.action in {"list", "retrieve"} else Scope.ORCH_OPERATE)]

    def all_rows(self) -> QuerySet[Incident]:
        offset = Value(UNRESOLVED_OFFSET, output_field=BigIntegerField())  # a plain int is sent with 32 bits
        is_unresolved = When(resolved_at=None, then=F("id") + offset)
        return Incident.objects.annotate(sort_key=Case(is_unresolved, default=F("id"), output_field=BigIntegerField()))

    @openapi.LIST_INCIDENTS
    def list(self, request: Request) -> Response:
        """List incidents: unresolved ones first, then resolved ones, each newest first."""
        return self.list_rows(serialize_incident)

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
        cause = cause_of(request, parse(IncidentReasonInput, body_of(request))["reason"])
        incident: Incident = self.get_object()
        return Response(serialize_incident(operation(incident_ulid=incident.incident_ulid, cause=cause)))


class IncidentModeViewSet(OrganizationViewSet):
    """Incident modes of the organizations that the caller may see."""

    http_method_names = ["get", "head", "post"]
    organization_slug = "org_slug"

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ if self.action == "list" else Scope.ORCH_OPERATE)]

    def all_rows(self) -> QuerySet[IncidentMode]:
        return IncidentMode.objects.filter(until__gt=timezone.now())

    @openapi.LIST_INCIDENT_MODES
    def list(self, request: Request) -> Response:
        """List the organizations in incident mode, the newest first."""
        return self.list_rows(serialize_incident_mode)

    @openapi.BEGIN_INCIDENT_MODE
    def create(self, request: Request) -> Response:
        """Put an organization into incident mode, or change the end and the reason of its mode."""
        validated = parse(BeginIncidentModeInput, body_of(request))
        visible_organization(client_of(request), validated["org_slug"])
        mode = incident_mode.begin_incident_mode(
            org_slug=validated["org_slug"], until=validated["until"], cause=cause_of(request, validated["reason"])
        )
        return Response(serialize_incident_mode(mode))

    @openapi.END_INCIDENT_MODE
    @action(detail=False, methods=["post"])
    def end(self, request: Request) -> Response:
        """End the incident mode of an organization now."""
        validated = parse(EndIncidentModeInput, body_of(request))
        org_slug, cause = validated["org_slug"], cause_of(request, validated["reason"])
        visible_organization(client_of(request), org_slug)
        incident_mode.end_incident_mode(org_slug=org_slug, cause=cause)
        return Response(status=204)
