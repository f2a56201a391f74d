"""OpenAPI of the operations on webhooks and deliveries."""

from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import DELETED, location, path_parameter
from orchestrator.protocols.native.openapi import IDEMPOTENCY_KEY, REPLAYED_CREATED, request_example, response_example
from orchestrator.protocols.native.serializers import EmptyBody
from orchestrator.protocols.native.webhooks import serializers

WEBHOOK_ID_PATTERN = "whk_[0-9a-z]{26}"
DELIVERY_ID_PATTERN = "dlv_[0-9a-z]{26}"
WEBHOOK_ID = path_parameter("webhook_id", WEBHOOK_ID_PATTERN)
DELIVERY_ID = path_parameter("delivery_id", DELIVERY_ID_PATTERN)
LOCATION = location("Path of the new webhook.")
_TERMS: dict[str, Any] = {
    "org_slug": "sandtrace",
    "url": "https://hooks.example.com/orchestrator",
    "description": "chat of the build team",
    "event_types": ["job.failed", "incident.opened"],
    "job_types": [],
}
_WEBHOOK: dict[str, Any] = _TERMS | {
    "webhook_id": "whk_01kkygkagq0jk17bx6y1w8c3df",
    "status": "active",
    "status_reason": "",
    "failing_since": None,
    "former_secret_until": None,
    "updated_by": {"kind": "client", "id": "token ci"},
    "created_at": "2026-03-17T20:00:00Z",
    "updated_at": "2026-03-17T20:00:00Z",
}
_SECRET = {"secret": "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}
_DELIVERY: dict[str, Any] = {
    "delivery_id": "dlv_01kkygkagq0jk17bx6y1w8c3df",
    "event_id": "019d3d09-aa17-04a6-13af-a6f0788187af",
    "event_type": "job.failed",
    "job_type": "runtime",
    "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "status": "pending",
    "tries": 2,
    "last_error": "The receiver answered 500 after 0.2 seconds.",
    "next_try_at": "2026-03-17T20:35:00Z",
    "created_at": "2026-03-17T20:00:00Z",
    "finished_at": None,
}

LIST_WEBHOOKS = operation_docs("list_webhooks", responses=serializers.WebhookOutput(many=True))
GET_WEBHOOK = operation_docs(
    "get_webhook",
    responses=serializers.WebhookOutput,
    parameters=[WEBHOOK_ID],
    examples=[response_example("webhook", _WEBHOOK)],
    codes=("not_found",),
)
CREATE_WEBHOOK = operation_docs(
    "create_webhook",
    request=serializers.WebhookInput,
    responses={201: serializers.WebhookSecretOutput},
    parameters=[IDEMPOTENCY_KEY, REPLAYED_CREATED, LOCATION],
    examples=[
        request_example("failures and incidents", _TERMS),
        response_example("webhook with its secret", _WEBHOOK | _SECRET, "201"),
    ],
    codes=("not_found", "conflict", "blocked_url", "idempotency_conflict"),
)
CHANGE_WEBHOOK = operation_docs(
    "change_webhook",
    request=serializers.ChangeWebhookInput,
    responses=serializers.WebhookOutput,
    parameters=[WEBHOOK_ID],
    examples=[request_example("pause it", {"status": "paused"}), response_example("webhook", _WEBHOOK)],
    codes=("not_found", "blocked_url"),
)
DELETE_WEBHOOK = operation_docs(
    "delete_webhook", responses={204: DELETED}, parameters=[WEBHOOK_ID], codes=("not_found",)
)
ROTATE_SECRET = operation_docs(
    "rotate_webhook_secret",
    request=EmptyBody,
    responses=serializers.WebhookSecretOutput,
    parameters=[WEBHOOK_ID],
    examples=[response_example("webhook with its new secret", _WEBHOOK | _SECRET)],
    codes=("not_found",),
)
TEST_WEBHOOK = operation_docs(
    "test_webhook",
    request=EmptyBody,
    responses={202: serializers.DeliveryOutput},
    parameters=[WEBHOOK_ID],
    codes=("not_found", "conflict"),
)
REDELIVER_MANY = operation_docs(
    "redeliver_to_webhook",
    request=serializers.RedeliverInput,
    responses={202: serializers.RedeliveredOutput},
    parameters=[WEBHOOK_ID],
    examples=[
        request_example("all since a time", {"since": "2026-03-17T20:00:00Z"}),
        response_example("dead letters", {"redelivered": 12, "has_more": False, "next_since": None}, "202"),
    ],
    codes=("not_found", "conflict"),
)
LIST_DELIVERIES = operation_docs(
    "list_deliveries",
    responses=serializers.DeliveryOutput(many=True),
    parameters=[WEBHOOK_ID],
    examples=[response_example("delivery that is tried again", _DELIVERY)],
    codes=("not_found",),
)
GET_DELIVERY = operation_docs(
    "get_delivery",
    responses=serializers.DeliveryDetailOutput,
    parameters=[WEBHOOK_ID, DELIVERY_ID],
    codes=("not_found",),
)
REDELIVER = operation_docs(
    "redeliver_delivery",
    request=EmptyBody,
    responses={202: serializers.DeliveryOutput},
    parameters=[WEBHOOK_ID, DELIVERY_ID],
    examples=[response_example("delivery", _DELIVERY | {"tries": 8}, "202")],
    codes=("not_found", "conflict"),
)
