"""Errors in Bencher's envelope: `{"request_id", "message", "error_code"}`, pretty-printed, with CORS headers.

`error_code` is the code that the native API has for the same error. Bencher has no status for a body that is too large
or of another media type: both are 400.
"""

import json
from typing import Any, Final

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.errors import problems
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of

ALL_METHODS: Final = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
ALLOWED_HEADERS: Final = "Content-Type, Authorization"
EXPOSED_HEADERS: Final = "X-Total-Count"
BAD_REQUESTS: Final = frozenset({411, 413, 415, 422})  # statuses that this protocol reports as 400


class BencherErrorResponse(Response):
    """A JSON response, whatever `Accept` says."""

    @property
    def rendered_content(self) -> str:
        self["Content-Type"] = "application/json"
        return json.dumps(self.data, indent=2)


def cors_headers(methods: str = ALL_METHODS, headers: str = ALLOWED_HEADERS) -> dict[str, str]:
    """Return the headers that permit pages of any site to read a response.

    Args:
        methods: The value of `Access-Control-Allow-Methods`.
        headers: The value of `Access-Control-Allow-Headers`.
    """
    return {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Methods": methods,
        "Access-Control-Allow-Headers": headers,
        "Access-Control-Expose-Headers": EXPOSED_HEADERS,
    }


def bad_request(message: str) -> ApiError:
    """Return the 400 for a path, query or header that cannot be used; the message names the parameter."""
    return ApiError(400, "invalid", message)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Return the response to an exception of a view of this protocol."""
    request = context["request"]
    return error_response(problems.to_api_error(error, context_of(request).request_id), request)


def error_response(error: ApiError, request: HttpRequest | Request) -> Response:
    """Return the response to an error, also to one outside the views (`settings.ERROR_DIALECTS`)."""
    body = {"request_id": context_of(request).request_id, "error_code": error.code, "message": _message(error)}
    status = 400 if error.status in BAD_REQUESTS else error.status
    return BencherErrorResponse(body, status=status, headers=cors_headers() | error.headers)


def _message(error: ApiError) -> str:
    if error.status == 413 and "limit" in error.members:
        return f"request body exceeded maximum size of {error.members['limit']} bytes"
    fields: dict[str, list[str]] = error.members.get("errors", {})
    if not fields:
        return error.detail
    return " ".join(f"{name}: {' '.join(texts)}" for name, texts in fields.items())
