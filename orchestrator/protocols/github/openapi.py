"""OpenAPI of the webhook."""

from drf_spectacular.utils import OpenApiExample, OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.github.serializers import WebhookResultOutput

_PAYLOAD = {"type": "object", "description": "Payload of GitHub.", "additionalProperties": True}
_FORM = {
    "type": "object",
    "properties": {"payload": {"type": "string", "description": "The same payload, as JSON."}},
    "required": ["payload"],
}
_RUN = {"run_id": "rtb_01kkygkagq0jk17bx6y1w8c3df", "state": "QUEUED"}

WEBHOOK_DOCS = operation_docs(
    "receive_github_webhook",
    request={"application/json": _PAYLOAD, "application/x-www-form-urlencoded": _FORM},
    responses={
        201: OpenApiResponse(WebhookResultOutput, description="A new run."),
        202: OpenApiResponse(
            WebhookResultOutput, description="An existing run, or `refused`; no body if the event starts nothing."
        ),
    },
    examples=[OpenApiExample("run", _RUN, response_only=True)],
    codes=("queue_full", "submit_rate_exceeded", "webhook_not_configured"),
)
