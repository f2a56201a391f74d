"""Errors outside our views: problem documents for programs, Django's pages for people in the admin."""

import sys
from typing import Any

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views import csrf, defaults

from orchestrator.http.errors.problems import ApiError, as_response, internal_error, map_exception

UNKNOWN_HOST = "The Host header names none of this server's names. Its operator allows them with ALLOWED_HOSTS."
_FOR_PEOPLE = ("/admin/", "/runs/", "/login/", "/logout/")


def _for_people(request: HttpRequest) -> bool:
    return request.path.startswith(_FOR_PEOPLE)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, DisallowedHost):
        return as_response(ApiError(400, "invalid", UNKNOWN_HOST), request)
    if _for_people(request):
        return defaults.bad_request(request, exception)
    return as_response(ApiError(400, "invalid", "The request is not valid."), request)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _for_people(request):
        return defaults.permission_denied(request, exception)
    return as_response(ApiError(403, "forbidden", "That is not allowed."), request)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _for_people(request):
        return defaults.page_not_found(request, exception)
    return as_response(ApiError(404, "not_found", "There is no such thing, or you may not see it."), request)


def cross_site(request: HttpRequest, reason: str = "") -> HttpResponse:
    """CSRF_FAILURE_VIEW."""
    if _for_people(request):
        return csrf.csrf_failure(request, reason)
    return as_response(ApiError(403, "forbidden", "That is not allowed."), request)


def too_many_attempts(request: HttpRequest, retry_after: int) -> HttpResponse:
    """Answer 429: too many passwords are being hashed in this process."""
    headers = {"Retry-After": str(retry_after)}
    if _for_people(request):
        page = render(request, "429.html", {"retry_after": retry_after}, status=429)
        page["Retry-After"] = headers["Retry-After"]
        return page
    detail = f"Too many passwords are being checked. Try again in {retry_after} seconds."
    return as_response(ApiError(429, "rate_limited", detail, headers=headers), request)


def crashed(request: HttpRequest, *_: Any) -> HttpResponse:
    """Django calls this while it handles the exception; a database that is down is no bug of ours."""
    if _for_people(request):
        return defaults.server_error(request)
    error = sys.exc_info()[1]
    refusal = map_exception(error) if isinstance(error, Exception) else None
    return as_response(refusal or internal_error(), request)
