"""Views of `/v1/bulk-actions`."""

from typing import Any

import django_filters
from django.conf import settings
from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.bulk_actions.actions import ACTIONS
from orchestrator.bulk_actions.models import BulkAction, BulkStatus, BulkTarget, TargetOutcome
from orchestrator.bulk_actions.operations import NO_BULK_ACTION, abort_bulk_action, start_bulk_action
from orchestrator.bulk_actions.targets import count_targets, store_targets
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import LIST_PARAMETERS
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.base_view import OrganizationViewSet, created_response
from orchestrator.protocols.native.bulk_actions import openapi, serializers, wire
from orchestrator.protocols.native.organizations import visible_organization
from runtime_jobs.models.tenants import Scope


class BulkActionFilters(django_filters.FilterSet):
    """Filters of `GET /v1/bulk-actions`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")
    status = django_filters.ChoiceFilter(choices=BulkStatus.choices)
    action = django_filters.ChoiceFilter(choices=[(name, name) for name in ACTIONS])

    class Meta:
        model = BulkAction
        fields: list[str] = []


class BulkActionViewSet(OrganizationViewSet):
    """Bulk actions of the organizations that the caller may see."""

    lookup_field = "bulk_action_ulid"
    lookup_url_kwarg = "bulk_action_id"
    lookup_value_regex = openapi.BULK_ACTION_ID_PATTERN
    http_method_names = ["get", "head", "post"]
    filterset_class = BulkActionFilters
    parameters = {"refusals": LIST_PARAMETERS}
    missing = NO_BULK_ACTION

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_OPERATE)]

    def all_rows(self) -> QuerySet[BulkAction]:
        return BulkAction.objects.select_related("organization")

    @openapi.LIST_BULK_ACTIONS
    def list(self, request: Request) -> Response:
        """List bulk actions, newest first."""
        return self.list_rows(wire.serialize_bulk_action)

    @openapi.GET_BULK_ACTION
    def retrieve(self, request: Request, bulk_action_id: str) -> Response:
        """Return a bulk action with its progress."""
        return Response(wire.serialize_bulk_action(self.own_row(bulk_action_id)))

    @openapi.START_BULK_ACTION
    def create(self, request: Request) -> Response:
        """Count the targets of an action and start it (202), or only count them (`dry_run`, 200)."""
        validated = parse(serializers.BulkActionInput, body_of(request))
        organization = visible_organization(client_of(request), validated["org_slug"])
        if validated["dry_run"]:
            limit = settings.BULK_ACTION_TARGETS
            matched = count_targets(validated["action"], organization.slug, validated["filter"], limit=limit)
            return Response({"matched": matched, "limit": limit})
        row, is_new = start_bulk_action(
            organization=organization,
            action=validated["action"],
            filters=validated["filter"],
            store_targets=store_targets,
            cause=cause_of(request, validated["reason"]),
            idempotency=idempotent_request(request, "start bulk action", body_of(request)),
        )
        location = f"/v1/bulk-actions/{row.bulk_action_ulid}"
        return created_response(wire.serialize_bulk_action(row), location, is_new=is_new, status=202)

    @openapi.ABORT_BULK_ACTION
    @action(detail=True, methods=["post"])
    def abort(self, request: Request, bulk_action_id: str) -> Response:
        """Stop a bulk action. What it has changed stays changed. A second call changes nothing."""
        reason = parse(serializers.AbortBulkActionInput, body_of(request))["reason"]
        self.own_row(bulk_action_id)
        row = abort_bulk_action(bulk_action_ulid=bulk_action_id, cause=cause_of(request, reason))
        return Response(wire.serialize_bulk_action(row))

    @openapi.LIST_REFUSALS
    @action(detail=True, filterset_class=None)
    def refusals(self, request: Request, bulk_action_id: str) -> Response:
        """List the jobs or incidents for which the operation was refused, newest first."""
        row = self.own_row(bulk_action_id)
        targets = BulkTarget.objects.filter(bulk_action=row, outcome=TargetOutcome.REFUSED)
        return self.page_of(targets, wire.serialize_refusal)
