"""OpenAPI of the operations on notification rules."""

from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import DELETED, location, path_parameter
from orchestrator.protocols.native.notification_rules import serializers
from orchestrator.protocols.native.openapi import IDEMPOTENCY_KEY, REPLAYED_CREATED, request_example, response_example

RULE_ID_PATTERN = "nrl_[0-9a-z]{26}"
RULE_ID = path_parameter("rule_id", RULE_ID_PATTERN)
LOCATION = location("Path of the new rule.")
_TERMS: dict[str, Any] = {
    "org_slug": "sandtrace",
    "name": "failures of the platform",
    "is_enabled": True,
    "event_types": ["job.failed"],
    "job_types": [],
    "projects": ["web"],
    "failure_classes": ["worker", "infrastructure"],
    "priority_from": "high",
    "webhook_id": "whk_01kkygkagq0jk17bx6y1w8c3df",
    "recipients": [],
    "gather_seconds": 60,
}
_RULE = _TERMS | {
    "rule_id": "nrl_01kkygkagq0jk17bx6y1w8c3df",
    "updated_by": {"kind": "client", "id": "token ci"},
    "created_at": "2026-03-17T20:00:00Z",
    "updated_at": "2026-03-17T20:00:00Z",
}

LIST_RULES = operation_docs("list_notification_rules", responses=serializers.NotificationRuleOutput(many=True))
GET_RULE = operation_docs(
    "get_notification_rule",
    responses=serializers.NotificationRuleOutput,
    parameters=[RULE_ID],
    examples=[response_example("rule", _RULE)],
    codes=("not_found",),
)
CREATE_RULE = operation_docs(
    "create_notification_rule",
    request=serializers.NotificationRuleInput,
    responses={201: serializers.NotificationRuleOutput},
    parameters=[IDEMPOTENCY_KEY, REPLAYED_CREATED, LOCATION],
    examples=[request_example("failures of urgent jobs", _TERMS), response_example("rule", _RULE, "201")],
    codes=("not_found", "conflict", "idempotency_conflict"),
)
CHANGE_RULE = operation_docs(
    "change_notification_rule",
    request=serializers.ChangeNotificationRuleInput,
    responses=serializers.NotificationRuleOutput,
    parameters=[RULE_ID],
    examples=[request_example("switch it off", {"is_enabled": False}), response_example("rule", _RULE)],
    codes=("not_found", "conflict"),
)
DELETE_RULE = operation_docs(
    "delete_notification_rule", responses={204: DELETED}, parameters=[RULE_ID], codes=("not_found",)
)
