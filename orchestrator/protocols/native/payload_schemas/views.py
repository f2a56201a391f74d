"""Views of `/v1/payload-schemas`."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.cause import Cause
from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import invalid_query
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.http.client_ip import client_address
from orchestrator.protocols.native.base_view import OrganizationViewSet
from orchestrator.protocols.native.organizations import visible_organization
from orchestrator.protocols.native.payload_schemas import openapi, serializers
from orchestrator.services import payload_schemas
from runtime_jobs.models import PayloadSchema
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import PAYLOAD_TYPES


class PayloadSchemaFilters(django_filters.FilterSet):
    """Filters of `GET /v1/payload-schemas`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")
    job_type = django_filters.ChoiceFilter(choices=[(name, name) for name in PAYLOAD_TYPES])


class PayloadSchemaViewSet(OrganizationViewSet):
    """Schemas of the organizations that the caller may see."""

    lookup_field = "job_type"
    lookup_value_regex = "|".join(PAYLOAD_TYPES)
    http_method_names = ["get", "head", "put", "delete"]
    filterset_class = PayloadSchemaFilters
    parameters = {"destroy": frozenset({"org_slug"})}

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ if self.action == "list" else Scope.ORCH_OPERATE)]

    def all_rows(self) -> QuerySet[PayloadSchema]:
        return PayloadSchema.objects.select_related("organization")

    @openapi.LIST_PAYLOAD_SCHEMAS
    def list(self, request: Request) -> Response:
        """List schemas, the newest first."""
        return self.list_rows(_serialize)

    @openapi.SET_PAYLOAD_SCHEMA
    def update(self, request: Request, job_type: str) -> Response:
        """Set the schema that payloads of this type must match from now on."""
        validated, caller = parse(serializers.PayloadSchemaInput, body_of(request)), client_of(request)
        row = payload_schemas.set_payload_schema(
            organization=visible_organization(caller, validated["org_slug"]),
            job_type=job_type,
            document=validated["document"],
            cause=Cause(caller.actor, source_address=client_address(request)),
        )
        return Response(_serialize(row))

    @openapi.DELETE_PAYLOAD_SCHEMA
    def destroy(self, request: Request, job_type: str) -> Response:
        """Remove a schema."""
        query, caller = serializers.PayloadSchemaScopeInput(data=request.query_params.dict()), client_of(request)
        if not query.is_valid():
            raise invalid_query("org_slug", "This parameter is required: the slug of an organization.")
        payload_schemas.remove_payload_schema(
            organization=visible_organization(caller, query.validated_data["org_slug"]),
            job_type=job_type,
            cause=Cause(caller.actor, source_address=client_address(request)),
        )
        return Response(status=204)


def _serialize(row: PayloadSchema) -> dict[str, Any]:
    return {
        "org_slug": row.organization.slug,
        "job_type": row.job_type,
        "document": row.document,
        "version": row.version,
        "changed_by": serialize_actor(row.changed_by),
        "changed_at": format_timestamp(row.changed_at),
    }
