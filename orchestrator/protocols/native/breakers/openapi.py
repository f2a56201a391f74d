"""OpenAPI of the operations on breakers: ids, bodies, examples and error codes."""

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
