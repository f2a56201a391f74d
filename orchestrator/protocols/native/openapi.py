"""OpenAPI parameters, headers and helpers that several resources of the native API share."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiExample, OpenApiParameter

from orchestrator.http.api.headers import KEY_PATTERN, SESSION_PATTERN

HEADER: Final = "header"
QUERY: Final = "query"
PATH: Final = "path"


def request_example(summary: str, value: Any) -> OpenApiExample:
    """Return an example of a request body."""
    return OpenApiExample(summary, value, request_only=True)


def response_example(summary: str, value: Any, *statuses: str) -> OpenApiExample:
    """Return an example of a response body for these statuses, 200 by default."""
    return OpenApiExample(summary, value, response_only=True, status_codes=list(statuses or ("200",)))


def _header(name: str, pattern: str, description: str) -> OpenApiParameter:
    return OpenApiParameter(name, {"type": "string", "pattern": f"^{pattern}$"}, HEADER, description=description)


def _replayed(status: int) -> OpenApiParameter:
    return OpenApiParameter(
        "Idempotency-Replayed",
        {"type": "string", "enum": ["true"]},
        HEADER,
        response=[status],
        description="Present if this is the stored response of an earlier request with the same key.",
    )


def etag(*statuses: int) -> OpenApiParameter:
    """Return the response header `ETag` for these statuses."""
    return OpenApiParameter(
        "ETag", {"type": "string"}, HEADER, required=True, response=list(statuses), description="Version of the limit."
    )


IDEMPOTENCY_KEY = _header(
    "Idempotency-Key",
    KEY_PATTERN,
    "A repeated request returns the first response. Another request with the same key is 409.",
)
WORKER_SESSION = _header("Worker-Session", SESSION_PATTERN, "ULID that identifies the worker process.")
REPLAYED_CREATED = _replayed(201)
REPLAYED_OK = _replayed(200)
