"""What every request gets before a view sees it: an id, and a limit to its body."""

import re
from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from orchestrator.access.problems import Refusal, as_response
from runtime_jobs.identifiers import new_id

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

Next = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


def _arrive(request: HttpRequest) -> HttpResponse | None:
    """Name the request: `request_id` is the caller's X-Request-Id if it is sane, `correlation_id` the trace it belongs
    to. Refuse a body that says it is too large; one that does not say is counted while it is parsed."""
    sent = request.headers.get("X-Request-Id", "")
    request.request_id = sent if _REQUEST_ID.fullmatch(sent) else new_id("req")
    trace = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    request.correlation_id = trace[1] if trace else request.request_id
    length = request.META.get("CONTENT_LENGTH") or "0"
    if length.isdigit() and int(length) > settings.BODY_LIMIT_BYTES:
        limit = settings.BODY_LIMIT_BYTES
        return as_response(Refusal(413, "payload_too_large", "The body is too large.", limit=limit), request)
    return None


def _leave(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    response["X-Request-Id"] = request.request_id
    return response


@sync_and_async_middleware
def arrival(get_response: Next) -> Next:
    """First of all middleware, so that every answer carries the id."""
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            return _leave(request, _arrive(request) or await get_response(request))

        return asynchronous

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        return _leave(request, _arrive(request) or get_response(request))

    return synchronous
