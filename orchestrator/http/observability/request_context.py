"""What the first middleware notes about a request: its name, the trace it belongs to, when it came."""

import re
import time
from dataclasses import dataclass

from django.http import HttpRequest
from rest_framework.request import Request

from orchestrator.http.observability.log_redaction import redacted
from runtime_jobs.identifiers import new_id

_KEY = "orchestrator.arrival"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class RequestContext:
    """`request_id` is the caller's X-Request-Id if that is sane, `correlation_id` the trace of its `traceparent`, else
    the request id; `at` is on the monotonic clock."""

    request_id: str
    correlation_id: str
    at: float


def attach_context(request: HttpRequest, before: RequestContext | None = None) -> RequestContext:
    """Called once, first of all. `before`: this is another look by a request that came before."""
    if before:
        request.META[_KEY] = before
        return before
    sent = request.headers.get("X-Request-Id", "")
    sane = _REQUEST_ID.fullmatch(sent) and redacted(sent) == sent
    request_id = sent if sane else new_id("req")
    trace = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    arrival = RequestContext(request_id, trace[1] if trace else request_id, time.monotonic())
    request.META[_KEY] = arrival
    return arrival


def context_of(request: HttpRequest | Request) -> RequestContext:
    """What was noted. A request that came past the middleware (a test's) is noted now."""
    found = request.META.get(_KEY)
    if isinstance(found, RequestContext):
        return found
    return attach_context(request._request if isinstance(request, Request) else request)  # noqa: SLF001 DRF has no name for it
