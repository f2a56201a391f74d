"""OpenAPI parameters, headers and helpers that several resources of the native API share."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiExample, OpenApiParameter

from orchestrator.http.api.headers import SESSION_PATTERN
from orchestrator.http.api.openapi_parts import idempotency_key, idempotency_replayed

HEADER: Final = "header"
QUERY: Final = "query"
PATH: Final = "path"


def request_example(summary: str, value: Any) -> OpenApiExample:
    """Return an example of a request body."""
    return OpenApiExample(summary, value, request_only=True)


def response_example(summary: str, value: Any, *statuses: str) -> OpenApiExample:
    """Return an example of a response body for these statuses, 200 by default."""
    return OpenApiExample(summary, value, response_only=True, status_codes=list(statuses or ("200",)))


def etag(*statuses: int) -> OpenApiParameter:
    """Return the response header `ETag` for these statuses."""
    return OpenApiParameter(
        "ETag", {"type": "string"}, HEADER, required=True, response=list(statuses), description="Version of the limit."
    )


IDEMPOTENCY_KEY = idempotency_key()
WORKER_SESSION = OpenApiParameter(
    "Worker-Session",
    {"type": "string", "pattern": f"^{SESSION_PATTERN}$"},
    HEADER,
    description="ULID that identifies the worker process.",
)
REPLAYED_CREATED = idempotency_replayed(201)
REPLAYED_OK = idempotency_replayed(200)
