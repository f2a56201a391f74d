"""Views of `/v1/breakers`."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from leases.models import Breaker, BreakerState
from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.incidents import breakers
from orchestrator.protocols.native.base_view import OrganizationViewSet
from orchestrator.protocols.native.breakers import openapi
from orchestrator.protocols.native.breakers.serializers import ResetBreakerInput
from orchestrator.protocols.native.breakers.wire import serialize_breaker
from orchestrator.protocols.native.organizations import visible_organization
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import JOB_TYPES


class BreakerFilters(django_filters.FilterSet):
    """Filters of `GET /v1/breakers`."""

    org_slug = django_filters.CharFilter()
    job_type = django_filters.ChoiceFilter(choices=[(name, name) for name in JOB_TYPES])
    state = django_filters.ChoiceFilter(choices=[(str(state), str(state)) for state in BreakerState])

    class Meta:
        model = Breaker
        fields: list[str] = []


class BreakerViewSet(OrganizationViewSet):
    """Breakers of the organizations that the caller may see."""

    http_method_names = ["get", "head", "post"]
    filterset_class = BreakerFilters
    organization_slug = "org_slug"

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ if self.action == "list" else Scope.ORCH_OPERATE)]

    def all_rows(self) -> QuerySet[Breaker]:
        return Breaker.objects.all()

    @openapi.LIST_BREAKERS
    def list(self, request: Request) -> Response:
        """List breakers, newest first. A breaker exists after the first failure that it counted."""
        return self.list_rows(serialize_breaker)

    @openapi.RESET_BREAKER
    @action(detail=False, methods=["post"])
    def reset(self, request: Request) -> Response:
        """Close a breaker now. Earlier failures no longer count."""
        validated = parse(ResetBreakerInput, body_of(request))
        visible_organization(client_of(request), validated["org_slug"])
        breaker = breakers.reset_breaker(
            org_slug=validated["org_slug"],
            job_type=validated["job_type"],
            cause=cause_of(request, validated["reason"]),
        )
        return Response(serialize_breaker(breaker))
