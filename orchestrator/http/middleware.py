"""The first middleware: identifiers, early refusals, cache headers and the access log of every request."""

import re
from collections.abc import Callable
from urllib.parse import unquote

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from orchestrator.http.asgi.body_limit import body_limit, too_large
from orchestrator.http.asgi.long_poll import is_empty, poll_attempt
from orchestrator.http.asgi.sync_handler import client_disconnected
from orchestrator.http.errors.problems import ApiError, as_response
from orchestrator.http.observability.access_log import CLIENT_CLOSED_REQUEST, access_log_entry
from orchestrator.http.observability.request_context import attach_context, context_of
from orchestrator.http.request_path import is_api_path

_TOKEN = re.compile(r"rto_(api|worker)_|bencher_(runner|user|run)_[0-9A-Za-z]{8}")
REGISTRY_PREFIX = "/v2/"  # docker clients send bodies chunked

Next = Callable[[HttpRequest], HttpResponseBase]


def _early_refusal(request: HttpRequest) -> HttpResponse | None:
    """Attach the request's context, and return the response of a request that no view has to process."""
    attempt = poll_attempt(request)
    attach_context(request, attempt.entry.context if attempt and attempt.entry else None)
    refusal = _invalid_length(request) or _token_in_query(request) or _plain_text(request)
    return as_response(refusal, request) if refusal else None


def _invalid_length(request: HttpRequest) -> ApiError | None:
    """Refuse a body whose declared length is too large, and under WSGI a body that declares none (chunked).

    Django treats a chunked body as empty. Under ASGI `asgi.body_limit` has read it and set its length.
    """
    length = request.META.get("CONTENT_LENGTH") or ""
    if not length and "HTTP_TRANSFER_ENCODING" in request.META and not _may_be_chunked(request):
        return ApiError(411, "length_required", "Send the body with a Content-Length.")
    limit = body_limit(str(request.method), request.path)
    if length.isascii() and length.isdecimal() and int(length.lstrip("0")[:19] or 0) > limit:
        return too_large(limit)
    return None


def _may_be_chunked(request: HttpRequest) -> bool:
    """Return whether the view reads a chunked body under WSGI: that of the registry, if the server reports its end."""
    return request.path.startswith(REGISTRY_PREFIX) and bool(request.META.get("wsgi.input_terminated"))


def _token_in_query(request: HttpRequest) -> ApiError | None:
    """Refuse a token in the query string, because every proxy logs URLs."""
    if _TOKEN.search(unquote(request.META.get("QUERY_STRING", ""))):
        detail = "The query contains a token. Revoke it, and send tokens in the `Authorization` header."
        return ApiError(400, "invalid_query", detail)
    return None


def _plain_text(request: HttpRequest) -> ApiError | None:
    """Refuse API calls over HTTP. A redirect, as for browsers, would let programs send their token in plain text."""
    if not settings.SECURE_SSL_REDIRECT or request.is_secure() or not is_api_path(request.path):
        return None
    return ApiError(403, "https_required", "Use https, and revoke the token: it was sent in plain text.")


def _finish(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Add headers, and write the access log unless the response belongs to a long poll that waits on."""
    response["X-Request-Id"] = context_of(request).request_id
    _forbid_storing(request, response)
    attempt = poll_attempt(request)
    status = response.status_code
    entry = access_log_entry(request)
    if not (attempt and attempt.should_keep_waiting(entry, status)):
        is_routine = _is_long_poll(request) and is_empty(response)
        entry.record(CLIENT_CLOSED_REQUEST if client_disconnected(request) else status, is_routine=is_routine)
    return response


def _is_long_poll(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and getattr(match.func, "is_long_poll", False)


def _forbid_storing(request: HttpRequest, response: HttpResponseBase) -> None:
    """Keep responses to credentials out of every cache, including the browser's own.

    RFC 9111 exempts only responses to `Authorization`, and only from shared caches.
    """
    if "Cache-Control" in response:
        return
    if is_api_path(request.path) or settings.SESSION_COOKIE_NAME in request.COOKIES:
        response["Cache-Control"] = "no-store"


def arrival(get_response: Next) -> Next:
    """Build the middleware. It is the first one, so that every response has an id and every request is logged."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        return _finish(request, _early_refusal(request) or get_response(request))

    return middleware
