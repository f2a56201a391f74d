"""What every request gets before a view sees it, and what is told of it afterwards: an id, limits, a line of log."""

import re
from collections.abc import Callable
from urllib.parse import unquote

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from orchestrator.http.asgi.bodies import too_large
from orchestrator.http.asgi.poll_attempt import poll_attempt
from orchestrator.http.asgi.routes import body_limit
from orchestrator.http.asgi.sync_handler import client_disconnected
from orchestrator.http.errors.problems import ApiError, as_response
from orchestrator.http.observability.access_log import CLIENT_CLOSED_REQUEST, access_log_entry
from orchestrator.http.observability.request_context import attach_context, context_of

_TOKEN = re.compile(r"rto_(api|worker)_")

Next = Callable[[HttpRequest], HttpResponseBase]
PROGRAMS = ("/v1/", "/api/")  # where programs call, with tokens


def _arrive(request: HttpRequest) -> HttpResponse | None:
    """Name the request, and answer at once what no view has to see."""
    look = poll_attempt(request)
    attach_context(request, look.line.arrival if look and look.line else None)
    refusal = _wrong_length(request) or _token_in_address(request) or _in_plain_text(request)
    return as_response(refusal, request) if refusal else None


def _wrong_length(request: HttpRequest) -> ApiError | None:
    """Refuse a body that says it is too large. One that does not say (chunked) has been read and measured by
    `http.asgi.bodies` under ASGI; under WSGI Django would take it for empty, so it is refused."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if not length and "HTTP_TRANSFER_ENCODING" in request.META:
        return ApiError(411, "length_required", "Send the body with a Content-Length.")
    limit = body_limit(str(request.method), request.path)
    if length.isascii() and length.isdecimal() and int(length.lstrip("0")[:19] or 0) > limit:
        return too_large(limit)
    return None


def _token_in_address(request: HttpRequest) -> ApiError | None:
    """Addresses are written down by every proxy on the way: a token in one is told to the world."""
    if _TOKEN.search(unquote(request.META.get("QUERY_STRING", ""))):
        detail = "A token belongs into the Authorization header. Revoke this one: others have read it."
        return ApiError(400, "invalid_query", detail)
    return None


def _in_plain_text(request: HttpRequest) -> ApiError | None:
    """Browsers are redirected to https; a program would repeat its token in the open with every request."""
    if not settings.SECURE_SSL_REDIRECT or request.is_secure() or not request.path.startswith(PROGRAMS):
        return None
    return ApiError(403, "https_required", "Use https, and revoke the token: it was sent in plain text.")


def _leave(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    response["X-Request-Id"] = context_of(request).request_id
    _forbid_storing(request, response)
    look = poll_attempt(request)
    if not (look and look.weigh(request, response.status_code)):
        access_log_entry(request).tell(CLIENT_CLOSED_REQUEST if client_disconnected(request) else response.status_code)
    return response


def _forbid_storing(request: HttpRequest, response: HttpResponseBase) -> None:
    """Keep what a session or a token may see out of every cache, a browser's own included. RFC 9111 spares only answers
    to `Authorization`, and only in shared caches; a page or an answer to a cookie could be stored by any."""
    if "Cache-Control" in response:
        return
    if request.path.startswith(PROGRAMS) or settings.SESSION_COOKIE_NAME in request.COOKIES:
        response["Cache-Control"] = "no-store"


def arrival(get_response: Next) -> Next:
    """First of all middleware, so that every answer carries the id and every request is told."""

    def answered(request: HttpRequest) -> HttpResponseBase:
        return _leave(request, _arrive(request) or get_response(request))

    return answered
