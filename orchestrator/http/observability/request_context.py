"""Identifiers and arrival time of a request, which the first middleware attaches to it."""

import re
import time
from dataclasses import dataclass

from django.http import HttpRequest
from rest_framework.request import Request

from orchestrator.http.observability.log_redaction import redacted
from runtime_jobs.identifiers import new_id

_KEY = "orchestrator.request_context"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class RequestContext:
    """Identifiers and arrival time of a request.

    Attributes:
        request_id: The client's `X-Request-Id` if that has the expected form, else a new id.
        correlation_id: The trace id of the client's `traceparent`, else the request id.
        arrived_at: Seconds on the monotonic clock.
    """

    request_id: str
    correlation_id: str
    arrived_at: float


def attach_context(request: HttpRequest, earlier: RequestContext | None = None) -> RequestContext:
    """Attach a context to a request that has none.

    Args:
        request: The request.
        earlier: The context of an earlier attempt of the same long poll, which is kept.
    """
    if earlier:
        request.META[_KEY] = earlier
        return earlier
    context = request.META[_KEY] = new_context(request.headers.get("X-Request-Id"), request.headers.get("traceparent"))
    return context


def new_context(sent_id: str | None, traceparent: str | None) -> RequestContext:
    """Return the context of a request that arrives now.

    Args:
        sent_id: The header `X-Request-Id`.
        traceparent: The header `traceparent`.
    """
    is_valid = sent_id is not None and _REQUEST_ID.fullmatch(sent_id) and redacted(sent_id) == sent_id
    request_id = sent_id if sent_id is not None and is_valid else new_id("req")
    trace = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    return RequestContext(request_id, trace[1] if trace else request_id, time.monotonic())


def context_of(request: HttpRequest | Request) -> RequestContext:
    """Return the context of a request; a request that bypassed the middleware, as in tests, gets one now."""
    found = request.META.get(_KEY)
    if isinstance(found, RequestContext):
        return found
    return attach_context(request._request if isinstance(request, Request) else request)  # noqa: SLF001 DRF has no name for it
