"""Errors of this protocol: `{"error": text}` as JSON (contract 2.0), in and outside of the views.

Its statuses differ from those of the native API: a move that is not allowed is 400, a lost lease 404.
"""

from typing import Any, Final

import orjson
from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response

from leases.errors import StaleLease
from orchestrator.http.api.calls import ApiAnswer
from orchestrator.http.errors import problems
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from runtime_jobs.errors import Conflict, InvalidTransition

CONTENT_TYPE: Final = "application/json; charset=utf-8"
REALM: Final = 'Bearer realm="shithub"'
JOB_NOT_FOUND: Final = "The job does not exist, or this runner does not have it."


class ShithubErrorResponse(Response):
    """A JSON document with a line break, whatever `Accept` says."""

    @property
    def rendered_content(self) -> str:
        self["Content-Type"] = CONTENT_TYPE
        return str(render(self.data), "utf-8")


def render(document: Any) -> bytes:
    """Return one JSON value and a line break."""
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def bad_request(message: str) -> ApiError:
    """Return a 400; the message names the field."""
    return ApiError(400, "invalid", message)


def unauthenticated(message: str) -> ApiError:
    """Return a 401 of a runner's endpoint. It has no challenge (contract 1.1)."""
    return ApiError(401, "unauthenticated", message)


def not_found(message: str = JOB_NOT_FOUND) -> ApiError:
    """Return a 404."""
    return ApiError(404, "not_found", message)


def to_error(error: Exception) -> ApiError | None:
    """Return the error of this protocol for an expected exception, or None for an unexpected one."""
    match error:
        case StaleLease():
            return not_found()
        case InvalidTransition() | Conflict():
            return bad_request(error.message)
    return problems.map_exception(error)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Return the response to an exception of a view of this protocol."""
    return _response(answer_to(error, context_of(context["request"]).request_id))


def error_response(error: ApiError, _request: HttpRequest | Request) -> Response:
    """Return the response to an error, also to one outside the views (`settings.ERROR_DIALECTS`)."""
    return _response(_answer(error))


def answer_to(error: Exception, request_id: str) -> ApiAnswer:
    """Return the answer to an exception of a call. An unexpected one is logged with the id of the request."""
    return _answer(to_error(error) or problems.to_api_error(error, request_id))


def _answer(error: ApiError) -> ApiAnswer:
    headers = {
        name: value
        for name, value in error.headers.items()
        if name.lower() != "www-authenticate" or value.startswith(REALM)  # runners are sent no challenge
    }
    return ApiAnswer({"error": _message(error)}, error.status, headers)


def _response(answer: ApiAnswer) -> Response:
    return ShithubErrorResponse(answer.data, status=answer.status, headers=answer.headers)


def _message(error: ApiError) -> str:
    fields: dict[str, list[str]] = error.members.get("errors", {})
    if not fields:
        return error.detail
    return " ".join(f"{name}: {' '.join(texts)}" for name, texts in fields.items())
