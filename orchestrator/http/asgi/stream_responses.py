"""The parts of streamed responses that all protocols share: renderers, headers, and when one is possible."""

from typing import Any, Final

from django.core.handlers.asgi import ASGIRequest
from django.http.response import HttpResponseBase
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

TEXT: Final = "text/plain; charset=utf-8"
EVENTS: Final = "text/event-stream; charset=utf-8"


class PlainTextRenderer(BaseRenderer):
    """Declares that a view answers text/plain, for `Accept` and the OpenAPI document. The view builds the text."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, *_: Any, **__: Any) -> bytes:
        return str(data).encode()


class EventStreamRenderer(PlainTextRenderer):
    """Declares that a view answers text/event-stream."""

    media_type = "text/event-stream"
    format = "events"


def can_stream(request: Request) -> bool:
    """Return whether a stream of this request occupies no thread: under ASGI, not under WSGI."""
    return isinstance(request._request, ASGIRequest)  # noqa: SLF001 DRF has no name for it


def unbuffered(response: HttpResponseBase) -> HttpResponseBase:
    """Return the response with headers by which caches and proxies pass each part on at once."""
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response
