"""Views of `/v1/packs`: list, read and register versions of packs."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.cause import Cause
from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import invalid_query
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.http.client_ip import client_address
from orchestrator.protocols.native.base_view import OrganizationViewSet
from orchestrator.protocols.native.organizations import visible_organization
from orchestrator.protocols.native.packs import openapi, serializers, wire
from orchestrator.services import packs
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.models import PackVersion
from runtime_jobs.models.tenants import Scope

NO_PACK = "There is no such version of a pack, or you may not see it."
NEEDS_ORGANIZATION = "This field is required: you may see several organizations, or none."


class PackFilters(django_filters.FilterSet):
    """Filters of `GET /v1/packs`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")
    pack_id = django_filters.CharFilter()


class PackViewSet(OrganizationViewSet):
    """Versions of the packs of the organizations that the caller may see."""

    http_method_names = ["get", "head", "put"]
    filterset_class = PackFilters
    parameters = {"retrieve": frozenset({"org_slug"})}

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_OPERATE if self.action == "update" else Scope.ORCH_READ)]

    def all_rows(self) -> QuerySet[PackVersion]:
        return PackVersion.objects.select_related("organization")

    @openapi.LIST_PACKS
    def list(self, request: Request) -> Response:
        """List versions of packs, the newest first."""
        return self.page_of(self.filter_queryset(self.get_queryset().defer("plan")), wire.serialize_listed_pack)

    @openapi.GET_PACK
    def retrieve(self, request: Request, pack_id: str, version: str) -> Response:
        """Return a version of a pack with its plan."""
        org_slug = request.query_params.get("org_slug") or _only_organization(client_of(request))
        if org_slug is None:
            raise invalid_query("org_slug", NEEDS_ORGANIZATION)
        named = self.get_queryset().filter(pack_id=pack_id, version=version, organization__slug=org_slug)
        row = named.first()
        if row is None:
            raise NotFound(NO_PACK)
        return Response(wire.serialize_pack(row))

    @openapi.REGISTER_PACK
    def update(self, request: Request, pack_id: str, version: str) -> Response:
        """Register a version of a pack: 201, or 200 if it exists with this plan. A version never changes."""
        body, caller = body_of(request), client_of(request)
        validated = parse(serializers.PackVersionInput, body)
        org_slug = validated["org_slug"] or _only_organization(caller)
        if org_slug is None:
            raise Invalid({"org_slug": [NEEDS_ORGANIZATION]})
        row, is_new = packs.register_pack_version(
            organization=visible_organization(caller, org_slug),
            pack_id=pack_id,
            version=version,
            plan=body["plan"],  # not the validated one: the client computes the hash of what it sends
            cause=Cause(caller.actor, source_address=client_address(request)),
        )
        return Response(wire.serialize_pack(row), status=201 if is_new else 200)


def _only_organization(caller: ClientPrincipal) -> str | None:
    """Return the organization of a caller who sees exactly one."""
    organizations = caller.organizations
    return organizations[0] if organizations is not None and len(organizations) == 1 else None
