"""Views of `/v1/notification-rules`."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.base_view import OrganizationViewSet, created_response
from orchestrator.protocols.native.notification_rules import openapi, serializers, wire
from orchestrator.protocols.native.organizations import visible_organization
from orchestrator.webhooks import notification_rules
from orchestrator.webhooks.models import NotificationRule
from orchestrator.webhooks.notification_rules import NO_RULE, RuleTerms
from runtime_jobs.models.tenants import Scope


class NotificationRuleFilters(django_filters.FilterSet):
    """Filters of `GET /v1/notification-rules`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")

    class Meta:
        model = NotificationRule
        fields: list[str] = []


class NotificationRuleViewSet(OrganizationViewSet):
    """Notification rules of the organizations that the caller may see."""

    lookup_field = "rule_ulid"
    lookup_url_kwarg = "rule_id"
    lookup_value_regex = openapi.RULE_ID_PATTERN
    http_method_names = ["get", "head", "post", "patch", "delete"]
    filterset_class = NotificationRuleFilters
    missing = NO_RULE

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_OPERATE)]

    def all_rows(self) -> QuerySet[NotificationRule]:
        return NotificationRule.objects.select_related("organization", "webhook")

    @openapi.LIST_RULES
    def list(self, request: Request) -> Response:
        """List notification rules, newest first."""
        return self.list_rows(wire.serialize_rule)

    @openapi.GET_RULE
    def retrieve(self, request: Request, rule_id: str) -> Response:
        """Return a notification rule."""
        return Response(wire.serialize_rule(self.own_row(rule_id)))

    @openapi.CREATE_RULE
    def create(self, request: Request) -> Response:
        """Create a rule: events that match all its conditions are sent to a webhook or by mail, gathered by key."""
        terms = wire.terms_of(parse(serializers.NotificationRuleInput, body_of(request)))
        organization = visible_organization(client_of(request), terms.pop("org_slug"))
        rule, is_new = notification_rules.create_notification_rule(
            organization=organization,
            terms=RuleTerms(**terms),
            idempotency=idempotent_request(request, "create notification rule", body_of(request)),
            cause=cause_of(request),
        )
        location = f"/v1/notification-rules/{rule.rule_ulid}"
        return created_response(wire.serialize_rule(rule), location, is_new=is_new)

    @openapi.CHANGE_RULE
    def partial_update(self, request: Request, rule_id: str) -> Response:
        """Change the conditions or the receiver of a rule."""
        changes = wire.terms_of(parse(serializers.ChangeNotificationRuleInput, body_of(request)))
        self.own_row(rule_id)
        rule = notification_rules.change_notification_rule(rule_ulid=rule_id, changes=changes, cause=cause_of(request))
        return Response(wire.serialize_rule(rule))

    @openapi.DELETE_RULE
    def destroy(self, request: Request, rule_id: str) -> Response:
        """Delete a rule, and what it has gathered."""
        self.own_row(rule_id)
        notification_rules.delete_notification_rule(rule_ulid=rule_id, cause=cause_of(request))
        return Response(status=204)
