"""OpenAPI of the operations on breakers and incidents: ids, bodies, examples and error codes."""

from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native.breakers import serializers
from orchestrator.protocols.native.openapi import request_example, response_example

_BREAKER_FIELDS: dict[str, Any] = {
    "org_slug": "sandtrace",
    "job_type": "steps",
    "state": "open",
    "opened_at": "2026-03-17T20:00:00Z",
    "next_probe_at": "2026-03-17T20:05:00Z",
}
_INCIDENT_FIELDS = {
    "incident_id": "inc_01kkygkagq0jk17bx6y1w8c3df",
    "kind": "breaker",
    "org_slug": "sandtrace",
    "job_type": "steps",
    "summary": "67% of the last steps jobs of sandtrace failed.",
    "opened_at": "2026-03-17T20:00:00Z",
    "resolved_at": None,
    "resolved_by": None,
}

LIST_BREAKERS = operation_docs(
    "list_breakers",
    responses=serializers.BreakerOutput(many=True),
    examples=[response_example("open breaker", _BREAKER_FIELDS)],
)
RESET_BREAKER = operation_docs(
    "reset_breaker",
    request=serializers.ResetBreakerInput,
    responses=serializers.BreakerOutput,
    examples=[
        request_example(
            "reset after a repair", {"org_slug": "sandtrace", "job_type": "steps", "reason": "the image is back"}
        ),
        response_example(
            "closed breaker", _BREAKER_FIELDS | {"state": "closed", "opened_at": None, "next_probe_at": None}
        ),
    ],
    codes=("not_found",),
)
LIST_INCIDENTS = operation_docs(
    "list_incidents",
    responses=serializers.IncidentOutput(many=True),
    examples=[response_example("open incident", _INCIDENT_FIELDS)],
)
