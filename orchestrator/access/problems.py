"""Errors as RFC 9457 problem documents, each with a stable code. Nothing internal gets out, and nothing is HTML."""

import logging
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response

from runtime_jobs.errors import Invalid, LifecycleError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

STATUS_OF_CODE = {
    "not_found": 404,
    "invalid": 400,
    "timeout_above_plan": 400,
    "feature_not_enabled": 403,
    "project_not_enabled": 403,
    "repository_not_allowed": 403,
    "worker_mismatch": 403,
    "pool_forbidden": 403,
}  # the core's other codes are conflicts: 409

TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    413: "Payload too large",
    415: "Unsupported media type",
    422: "Unprocessable",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
}

# SQLSTATEs of statements that were given up, not wrong: the same request may succeed in a moment.
_BUSY = {"55P03", "57014", "40P01", "40001", "25P03"}


class Refusal(Exception):
    """An edge refuses a request: HTTP status, stable code, a sentence, further members, headers."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.members = status, code, detail, members
        self.headers = headers or {}


def answer(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's EXCEPTION_HANDLER."""
    refusal = refusal_of(error)
    if refusal is None:
        log.exception("request %s failed", _request_id(context["request"]), exc_info=error)
        refusal = Refusal(500, "internal_error", "Something went wrong on our side.")
    body = problem(refusal, _request_id(context["request"]))
    return Response(body, status=refusal.status, headers=refusal.headers, content_type=MEDIA_TYPE)


def problem(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """The document: `type`, `title`, `status`, `detail`, `code`, `request_id`, and what else the error knows."""
    return {
        "type": f"urn:runtime-orchestrator:problem:{refusal.code}",
        "title": TITLES.get(refusal.status, "Error"),
        "status": refusal.status,
        "detail": refusal.detail,
        "code": refusal.code,
        "request_id": request_id,
        **refusal.members,
    }


def as_response(refusal: Refusal, request: HttpRequest) -> JsonResponse:
    """For refusals outside DRF's views: middleware, unknown addresses, crashes."""
    body = problem(refusal, _request_id(request))
    return JsonResponse(body, status=refusal.status, headers=refusal.headers, content_type=MEDIA_TYPE)


def refusal_of(error: Exception) -> Refusal | None:
    """What an exception means on the wire, or None for a bug."""
    match error:
        case Refusal():
            return error
        case Invalid():
            return Refusal(400, error.code, error.message, errors=error.errors)
        case LifecycleError():
            return Refusal(STATUS_OF_CODE.get(error.code, 409), error.code, error.message, **error.facts)
        case exceptions.ValidationError():
            return _invalid(error)
        case Http404() | exceptions.NotFound():
            return Refusal(404, "not_found", "There is no such thing, or you may not see it.")
        case RequestDataTooBig():
            return Refusal(413, "payload_too_large", "The body is too large.")
        case PermissionDenied():
            return Refusal(403, "forbidden", "That is not allowed.")
        case exceptions.APIException():
            return _of_framework(error)
        case OperationalError() | InterfaceError():
            return _of_database(error)
        case DataError():
            return Refusal(400, "invalid", "A value cannot be stored.")
    return None


def _invalid(error: exceptions.ValidationError) -> Refusal:
    errors: dict[str, list[str]] = {}
    codes = set()
    for path, detail in _flat(error.detail):
        errors.setdefault(path, []).append(str(detail))
        codes.add(detail.code)
    code = "unknown_field" if "unknown_field" in codes else "invalid"
    return Refusal(400, code, "The request is not valid.", errors=errors)


def _flat(detail: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Walk DRF's nested errors as ("execution.command", detail)."""
    if isinstance(detail, dict):
        for key, inner in detail.items():
            yield from _flat(inner, path if key == "non_field_errors" else f"{path}.{key}".lstrip("."))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _flat(inner, path)
    else:
        yield path or "body", detail


_FRAMEWORK_CODES = {401: "unauthenticated", 405: "method_not_allowed", 406: "not_acceptable"}
_FRAMEWORK_CODES |= {415: "unsupported_media_type", 403: "forbidden", 400: "malformed_json"}


def _of_framework(error: exceptions.APIException) -> Refusal:
    if isinstance(error, exceptions.Throttled):
        seconds = str(int(error.wait or 1))
        return Refusal(429, "rate_limited", "Too many requests.", headers={"Retry-After": seconds})
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    code = _FRAMEWORK_CODES.get(error.status_code, "invalid")
    detail = "A valid token is needed." if error.status_code == 401 else str(error.detail)
    return Refusal(error.status_code, code, detail, headers=headers)


def _of_database(error: Exception) -> Refusal:
    if getattr(error.__cause__, "sqlstate", None) in _BUSY:
        return Refusal(503, "busy", "Try again in a moment.", headers={"Retry-After": "1"})
    log.warning("database unavailable: %s", type(error.__cause__).__name__)
    return Refusal(503, "database_unavailable", "The database cannot be reached.", headers={"Retry-After": "2"})


def _request_id(request: Any) -> str:
    return getattr(getattr(request, "_request", request), "request_id", "")
