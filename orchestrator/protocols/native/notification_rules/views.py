"""Views of `/v1/notification-rules`."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.notification_rules import openapi, serializers, wire
from orchestrator.protocols.native.organizations import visible_organization
from orchestrator.webhooks import notification_rules
from orchestrator.webhooks.models import NotificationRule
from orchestrator.webhooks.notification_rules import NO_RULE, RuleTerms
from runtime_jobs.errors import NotFound
from runtime_jobs.models.tenants import Scope


class NotificationRuleFilters(django_filters.FilterSet):
    """Filters of `GET /v1/notification-rules`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")

    class Meta:
        model = NotificationRule
        fields: list[str] = []


class NotificationRuleViewSet(StrictQueryMixin, GenericViewSet):
    """Notification rules of the organizations that the caller may see."""

    lookup_field = "rule_ulid"
    lookup_url_kwarg = "rule_id"
    lookup_value_regex = openapi.RULE_ID_PATTERN
    http_method_names = ["get", "head", "post", "patch", "delete"]
    filterset_class = NotificationRuleFilters

    def query_parameters(self) -> frozenset[str]:
        return LIST_PARAMETERS | set(NotificationRuleFilters.base_filters) if self.action == "list" else frozenset()

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_OPERATE)]

    def get_queryset(self) -> QuerySet[NotificationRule]:
        if getattr(self, "swagger_fake_view", False):
            return NotificationRule.objects.none()
        organizations = client_of(self.request).organizations
        rows = NotificationRule.objects.select_related("organization", "webhook")
        return rows if organizations is None else rows.filter(organization__slug__in=organizations)

    @openapi.LIST_RULES
    def list(self, request: Request) -> Response:
        """List notification rules, newest first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([wire.serialize_rule(rule) for rule in page or []])

    @openapi.GET_RULE
    def retrieve(self, request: Request, rule_id: str) -> Response:
        """Return a notification rule."""
        return Response(wire.serialize_rule(self._own_rule(rule_id)))

    @openapi.CREATE_RULE
    def create(self, request: Request) -> Response:
        """Create a rule: events that match all its conditions are sent to a webhook or by mail, gathered by key."""
        body = serializers.NotificationRuleInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        terms = wire.terms_of(body.validated_data)
        organization = visible_organization(client_of(request), terms.pop("org_slug"))
        rule, is_new = notification_rules.create_notification_rule(
            organization=organization,
            terms=RuleTerms(**terms),
            idempotency=idempotent_request(request, "create notification rule", body_of(request)),
            cause=cause_of(request),
        )
        headers = {"Location": f"/v1/notification-rules/{rule.rule_ulid}"}
        headers |= {} if is_new else {"Idempotency-Replayed": "true"}
        return Response(wire.serialize_rule(rule), status=201, headers=headers)

    @openapi.CHANGE_RULE
    def partial_update(self, request: Request, rule_id: str) -> Response:
        """Change the conditions or the receiver of a rule."""
        body = serializers.ChangeNotificationRuleInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        self._own_rule(rule_id)
        changes = wire.terms_of(body.validated_data)
        rule = notification_rules.change_notification_rule(rule_ulid=rule_id, changes=changes, cause=cause_of(request))
        return Response(wire.serialize_rule(rule))

    @openapi.DELETE_RULE
    def destroy(self, request: Request, rule_id: str) -> Response:
        """Delete a rule, and what it has gathered."""
        self._own_rule(rule_id)
        notification_rules.delete_notification_rule(rule_ulid=rule_id, cause=cause_of(request))
        return Response(status=204)

    def _own_rule(self, rule_id: str) -> NotificationRule:
        rule = self.get_queryset().filter(rule_ulid=rule_id).first()
        if rule is None:
            raise NotFound(NO_RULE)
        return rule
