"""OpenAPI parameters, headers and examples that the resources of several APIs have in common."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from orchestrator.http.api.headers import KEY_PATTERN

DELETED: Final = OpenApiResponse(description="Deleted; no content.")


def path_parameter(name: str, pattern: str, **schema: Any) -> OpenApiParameter:
    """Return a path parameter of the form that a regular expression describes, such as the id of a resource."""
    return OpenApiParameter(name, _text(pattern) | schema, OpenApiParameter.PATH, required=True)


def location(description: str, *statuses: int) -> OpenApiParameter:
    """Return the response header `Location` for these statuses, 201 by default."""
    return OpenApiParameter(
        "Location",
        {"type": "string"},
        OpenApiParameter.HEADER,
        required=True,
        response=list(statuses or (201,)),
        description=description,
    )


def idempotency_key(
    description: str = "A repeated request returns the first response. Another request with the same key is 409.",
    *,
    required: bool = False,
) -> OpenApiParameter:
    """Return the request header `Idempotency-Key`."""
    return OpenApiParameter(
        "Idempotency-Key", _text(KEY_PATTERN), OpenApiParameter.HEADER, required=required, description=description
    )


def idempotency_replayed(
    status: int = 201,
    *,
    description: str = "Present if this is the stored response of an earlier request with the same key.",
    required: bool = False,
) -> OpenApiParameter:
    """Return the response header `Idempotency-Replayed` for a status."""
    return OpenApiParameter(
        "Idempotency-Replayed",
        {"type": "string", "enum": ["true"]},
        OpenApiParameter.HEADER,
        required=required,
        response=[status],
        description=description,
    )


def request_example(summary: str, value: Any) -> OpenApiExample:
    """Return an example of a request body."""
    return OpenApiExample(summary, value, request_only=True)


def response_example(summary: str, value: Any, *statuses: str) -> OpenApiExample:
    """Return an example of a response body for these statuses, 200 by default."""
    return OpenApiExample(summary, value, response_only=True, status_codes=list(statuses or ("200",)))


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}
