"""Response of `GET /api/dashboard/events`: the feed as Server-Sent Events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from orchestrator.events.channels import Audience, EventFilter, FeedBatch
from orchestrator.events.pages import Place
from orchestrator.events.place_tokens import encode_place
from orchestrator.events.reader import Gap
from orchestrator.http.asgi.server_sent_events import RETRY_SOON, with_pings
from orchestrator.http.asgi.stream_responses import EVENTS, can_stream, unbuffered
from orchestrator.http.asgi.streams import CountedResponse, registry
from orchestrator.http.auth.credentials import credential_of
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella.events.feed import FeedSnapshot, follow_events, place_after_gap, serialize_gap
from runtime_jobs.models.tenants import Scope


def dashboard_stream(
    request: Request, audience: Audience, event_filter: EventFilter, *, after: Place | None
) -> HttpResponseBase:
    """Return the stream. It occupies no thread and no database connection.

    Args:
        request: The request, whose credential is re-checked while the stream is open.
        audience: The organizations whose events the caller may see and requests.
        event_filter: The events that the caller requests.
        after: The place after which the stream begins; None: now.

    Raises:
        ApiError: `too_many_streams`, or `no_streams` under WSGI.
    """
    if request.method == "HEAD":
        return unbuffered(HttpResponse(content_type=EVENTS))
    if not can_stream(request):
        detail = "This server process (WSGI) cannot stream events. Send the request to a process of config.asgi."
        raise ApiError(503, "no_streams", detail, headers={"Retry-After": "60"})
    organizations = sorted(audience or ())
    stream = registry.admit(
        credential_of(
            request,
            org_slug=next(iter(organizations), ""),
            further_organizations=tuple(organizations[1:]),
            scope=Scope.ORCH_READ,
        ),
        "dashboard",
        authorization=request.META.get("HTTP_AUTHORIZATION", ""),
    )
    content = with_pings(events_of(audience, event_filter, after))
    return unbuffered(CountedResponse(content, stream=stream, content_type=EVENTS, farewell=RETRY_SOON))


async def events_of(audience: Audience, event_filter: EventFilter, after: Place | None) -> AsyncGenerator[bytes, None]:
    """Yield the rendered events for ever, or until a gap that ends the stream."""
    items = follow_events(audience, event_filter, after=after)
    async with aclosing(items):
        async for item in items:
            match item:
                case FeedSnapshot(numbers, place):
                    yield _event("snapshot", numbers, place)
                case Gap():
                    yield _event("gap", serialize_gap(item), place_after_gap(item))
                case FeedBatch(entries=(), place=place):
                    # A sign of life. It carries the place, so that a client which connects again begins there.
                    yield b": ping\nid: %s\n\n" % encode_place(place).encode()
                case FeedBatch(frames=frames):
                    yield frames


def _event(name: str, content: dict[str, Any], place: Place) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (encode_place(place).encode(), name.encode(), orjson.dumps(content))
