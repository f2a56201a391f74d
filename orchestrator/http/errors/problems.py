"""Converts exceptions to problem documents (RFC 9457) with stable codes. Internal details are only logged."""

import logging
import math
import re
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.module_loading import import_string
from psycopg_pool import PoolTimeout
from rest_framework import exceptions
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.errors.error_codes import CODES
from orchestrator.http.observability.request_context import context_of
from runtime_jobs.db_errors import fault_of, sqlstate_of
from runtime_jobs.errors import Invalid, LifecycleError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    402: "Quota exceeded",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Request timeout",
    409: "Conflict",
    411: "Length required",
    412: "Changed meanwhile",
    413: "Payload too large",
    415: "Unsupported media type",
    416: "Range not satisfiable",
    422: "Unprocessable",
    428: "Precondition required",
    429: "Too many requests",
    431: "Headers too large",
    500: "Internal error",
    501: "Not implemented",
    503: "Unavailable",
    507: "Insufficient storage",
}

_UNIQUE_VIOLATION = "23505"
NOT_FOUND = "The resource does not exist, or you may not see it."
MALFORMED = "The request is malformed: its path, parameters or body cannot be read."
NOT_ALLOWED = "You lack the permission for this request."
_MAX_NAMED_FIELDS = 5
# Undefined function, column and table: this process is newer than the schema, or has a bug. Both are logged as errors.
_SCHEMA_MISMATCH = frozenset({"42883", "42703", "42P01"})


class ApiError(Exception):
    """An error response: HTTP status, stable code, detail, further members, headers."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.members = status, code, detail, members
        self.headers = headers or {}


class ProblemDocument(Response):
    """A response in JSON, whatever the view renders, so that errors are the same inside and outside of DRF's views."""

    @property
    def rendered_content(self) -> str:
        self["Content-Type"] = MEDIA_TYPE
        return str(JSONRenderer().render(self.data), "utf-8")


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Return the response to an exception in a DRF view (`EXCEPTION_HANDLER`)."""
    request = context["request"]
    return _document(to_api_error(error, context_of(request).request_id), request)


def to_api_error(error: Exception, request_id: str) -> ApiError:
    """Return the error for an exception. An unexpected exception is logged and becomes `internal_error`."""
    refusal = map_exception(error)
    if refusal is None:
        log.error("request %s failed", request_id, exc_info=error)
        refusal = internal_error()
    return refusal


def as_response(refusal: ApiError, request: HttpRequest) -> HttpResponse:
    """Return the response to an error outside of DRF's views: middleware, unknown paths, unexpected exceptions.

    The path selects the format of its protocol (`settings.ERROR_DIALECTS`).
    """
    dialect = next((name for begin, name in settings.ERROR_DIALECTS.items() if re.match(begin, request.path)), None)
    response = (import_string(dialect) if dialect else _document)(refusal, request).render()
    response["Content-Length"] = str(len(response.content))
    return response


def _document(refusal: ApiError, request: HttpRequest | Request) -> ProblemDocument:
    body = problem(refusal, context_of(request).request_id)
    return ProblemDocument(body, status=refusal.status, headers=refusal.headers)


def internal_error() -> ApiError:
    """Return the error for an unexpected exception."""
    detail = "The server failed unexpectedly. Its log contains the details under the request_id."
    return ApiError(500, "internal_error", detail)


def problem(refusal: ApiError, request_id: str) -> dict[str, Any]:
    """Return the problem document of an error."""
    return {
        "type": f"urn:runtime-orchestrator:problem:{refusal.code}",
        "title": TITLES.get(refusal.status, "Error"),
        "status": refusal.status,
        "detail": refusal.detail,
        "code": refusal.code,
        "request_id": request_id,
        **refusal.members,
    }


def map_exception(error: Exception) -> ApiError | None:
    """Return the error for an expected exception, or None for an unexpected one."""
    match error:
        case ApiError():
            return error
        case LifecycleError():
            return _of_core(error)
        case exceptions.ValidationError():
            return _invalid(error)
        case exceptions.APIException():
            return _of_framework(error)
        case DatabaseError() | InterfaceError():
            return _of_schema(error) or _of_database(error)
    return next((ApiError(*meaning) for kind, meaning in _MEANINGS.items() if isinstance(error, kind)), None)


_MEANINGS: dict[type[Exception], tuple[int, str, str]] = {
    Http404: (404, "not_found", NOT_FOUND),
    RequestDataTooBig: (413, "payload_too_large", "The body is too large."),
    SuspiciousOperation: (400, "invalid", MALFORMED),
    PermissionDenied: (403, "forbidden", NOT_ALLOWED),
}


def _of_core(error: LifecycleError) -> ApiError:
    facts = {"errors": error.errors} if isinstance(error, Invalid) else error.facts
    after = facts.get("retry_after")
    headers = {} if after is None else {"Retry-After": str(after)}
    return ApiError(CODES[error.code].status, error.code, error.message, headers=headers, **facts)


def _invalid(error: exceptions.ValidationError) -> ApiError:
    errors: dict[str, list[str]] = {}
    codes = set()
    for path, detail in _flat(error.detail):
        errors.setdefault(path, []).append(str(detail))
        codes.add(detail.code)
    code = "unknown_field" if "unknown_field" in codes else "invalid"
    return ApiError(400, code, f"The request is not valid: {_field_list(errors)}.", errors=errors)


def _field_list(errors: dict[str, list[str]]) -> str:
    """Return the names of the first invalid fields."""
    names = [name[:100] for name in list(errors)[:_MAX_NAMED_FIELDS]]
    return ", ".join(names) + (", …" if len(errors) > _MAX_NAMED_FIELDS else "")


def _flat(detail: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield DRF's nested errors as pairs of path (`execution.command`) and detail."""
    if isinstance(detail, dict):
        for key, inner in detail.items():
            yield from _flat(inner, path if key == "non_field_errors" else f"{path}.{key}".lstrip("."))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _flat(inner, path)
    else:
        yield path or "body", detail


_FRAMEWORK_CODES = {
    400: "malformed_json",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    415: "unsupported_media_type",
}


def _of_framework(error: exceptions.APIException) -> ApiError:
    if isinstance(error, exceptions.Throttled):
        seconds = str(math.ceil(getattr(error, "wait", None) or 1))
        return ApiError(
            429,
            "rate_limited",
            f"Too many failed attempts from this address. Try again in {seconds} seconds.",
            headers={"Retry-After": seconds},
        )
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    status = error.status_code
    detail = _PLAIN_DETAILS.get(status, str(error.detail))
    return ApiError(status, _FRAMEWORK_CODES.get(status, "invalid"), detail, headers=headers)


# The framework's messages depend on the cause, which the caller must not learn.
_PLAIN_DETAILS = {401: "A valid token is needed.", 404: NOT_FOUND}


def _of_database(error: Exception) -> ApiError | None:
    fault = fault_of(error)
    if fault is None:
        return _of_statement(error)
    if fault.is_unavailable:
        detail = "The database cannot be reached. Repeat the request after Retry-After seconds."
        return ApiError(503, "database_unavailable", detail, headers={"Retry-After": "2"})
    if isinstance(error.__cause__, PoolTimeout):
        detail = "All database connections of this process are in use. Repeat the request after Retry-After seconds."
        return ApiError(503, "overloaded", detail, headers={"Retry-After": "1"})
    detail = (
        "The database could not complete the request now, because of a lock, a time limit or the number of "
        "connections. Repeat the request after Retry-After seconds."
    )
    return ApiError(503, "busy", detail, headers={"Retry-After": "1"})


def _of_statement(error: Exception) -> ApiError | None:
    if isinstance(error, DataError):
        detail = "The database cannot store a value: it is too large, or has the wrong type or a wrong character."
        return ApiError(400, "invalid", detail)
    if isinstance(error, IntegrityError) and sqlstate_of(error) == _UNIQUE_VIOLATION:
        detail = "Another request has created the same resource. Read it, then repeat the request."
        return ApiError(409, "conflict", detail)
    return None


def _of_schema(error: Exception) -> ApiError | None:
    if sqlstate_of(error) not in _SCHEMA_MISMATCH:
        return None
    log.error("the database schema does not match this release: run `manage.py migrate`", exc_info=error)
    detail = "The database schema does not match this release. An operator must run `manage.py migrate`."
    return ApiError(503, "database_unavailable", detail, headers={"Retry-After": "10"})
