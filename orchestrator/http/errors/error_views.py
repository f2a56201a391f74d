"""Errors outside of DRF's views: pages for browsers in the admin and on `/runs/`, problem documents otherwise."""

import sys
from typing import Any

from django.contrib import admin
from django.core.exceptions import BadRequest, DisallowedHost, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import Resolver404

from orchestrator.http.errors.problems import (
    MALFORMED,
    NOT_ALLOWED,
    NOT_FOUND,
    ApiError,
    as_response,
    internal_error,
    map_exception,
)
from orchestrator.http.observability.request_context import context_of
from orchestrator.http.request_path import is_api_path

UNKNOWN_HOST = "The Host header is not a name of this server. Its operator can add names to ALLOWED_HOSTS."
NO_PAGE = "There is no such page, or what it displayed was deleted."
CRASHED = "The server could not display this page. Its log has the reason under the id of the request."
_PAGES = ("/admin/", "/runs/", "/workflow-runs/", "/login/", "/logout/")
_JSON_TYPES = frozenset({"json", "problem+json"})


def wants_page(request: HttpRequest) -> bool:
    """Return whether the client gets an HTML page for an error.

    Only paths of pages have one. A client that names JSON and not HTML in `Accept` gets a problem document there, too.
    """
    if not request.path.startswith(_PAGES) or is_api_path(request.path):
        return False
    accepted = {(media.main_type, media.sub_type) for media in request.accepted_types}
    return ("text", "html") in accepted or not any(("application", sub_type) in accepted for sub_type in _JSON_TYPES)


def _page(request: HttpRequest, status: int, title: str, detail: str) -> HttpResponse:
    """Return an error page: in the frame of the admin for those who may open it, else in that of the pages of runs.

    The frame names the reader and lists what the reader may open. Where that fails, as without a database, the page has
    neither.
    """
    context = {"title": title, "detail": detail, "request_id": context_of(request).request_id}
    try:
        if request.path.startswith("/admin/") and admin.site.has_permission(request):
            return render(request, "admin/error.html", admin.site.each_context(request) | context, status=status)
        return render(request, "error.html", context, status=status)
    except Exception:  # noqa: BLE001 - the error of the request is logged, and must have an answer
        return HttpResponse(render_to_string("error.html", context), status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return 400."""
    if isinstance(exception, DisallowedHost):
        return as_response(ApiError(400, "invalid", UNKNOWN_HOST), request)
    detail = str(exception) if isinstance(exception, BadRequest) and str(exception) else MALFORMED
    if wants_page(request):
        return _page(request, 400, "Bad request", f"{detail} Nothing was changed.")
    return as_response(ApiError(400, "invalid", detail), request)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return 403."""
    detail = str(exception) if isinstance(exception, PermissionDenied) and str(exception) else NOT_ALLOWED
    if wants_page(request):
        return _page(request, 403, "Permission denied", f"{detail} A superuser of this installation can permit it.")
    return as_response(ApiError(403, "forbidden", detail), request)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return 404."""
    if wants_page(request):
        return _page(request, 404, "Page not found", NO_PAGE)
    # Bencher's programs display this text alone. A path that no view has reveals nothing about resources.
    is_endpoint_missing = request.path.startswith("/v0/") and isinstance(exception, Resolver404)
    detail = f"This server has no endpoint {request.path}." if is_endpoint_missing else NOT_FOUND
    return as_response(ApiError(404, "not_found", detail), request)


def cross_site(request: HttpRequest, reason: str = "") -> HttpResponse:  # noqa: ARG001 Django's signature
    """Return 403 for a request without a valid CSRF token (`CSRF_FAILURE_VIEW`)."""
    detail = "The CSRF token is missing or wrong, or the request comes from another site."
    if wants_page(request):
        return _page(request, 403, "Permission denied", f"{detail} Nothing was changed. Load the page again.")
    return as_response(ApiError(403, "forbidden", detail), request)


def login_required_error(request: HttpRequest) -> HttpResponse:
    """Return 401 for a page that needs a browser session, to a client that gets no redirect to the log-in."""
    detail = "This page requires the session of a browser: log in at /login/. API tokens are accepted under /v1/."
    headers = {"WWW-Authenticate": 'Session realm="runtime-orchestrator"'}
    return as_response(ApiError(401, "unauthenticated", detail, headers=headers), request)


def too_many_attempts(request: HttpRequest, retry_after: int) -> HttpResponse:
    """Return 429: too many passwords are being hashed in this process."""
    headers = {"Retry-After": str(retry_after)}
    detail = f"Too many passwords are being checked. Try again in {retry_after} seconds."
    if wants_page(request):
        page = _page(request, 429, "Too many requests", f"{detail} Nothing was changed.")
        page["Retry-After"] = headers["Retry-After"]
        return page
    return as_response(ApiError(429, "rate_limited", detail, headers=headers), request)


def crashed(request: HttpRequest, *_: Any) -> HttpResponse:
    """Return 500, or 503 if the database is unavailable. Django calls this while it handles the exception."""
    if wants_page(request):
        return _page(request, 500, "Server error", CRASHED)
    error = sys.exc_info()[1]
    api_error = map_exception(error) if isinstance(error, Exception) else None
    return as_response(api_error or internal_error(), request)
