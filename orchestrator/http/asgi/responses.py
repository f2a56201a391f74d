"""Responses that the event loop gives itself, without a thread: refusals and the health check."""

import io
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse

from orchestrator.http.errors.problems import ApiError, as_response
from orchestrator.http.observability.access_log import access_log_entry
from orchestrator.http.observability.request_context import attach_context, context_of


def overloaded(what: str) -> ApiError:
    """Returns the refusal of a request for which this process has no room now."""
    return ApiError(503, "overloaded", f"{what} Repeat the request after `Retry-After`.", headers={"Retry-After": "1"})


async def send_refusal(refusal: ApiError, scope: Any, send: Any, *, close: bool = False) -> None:
    """Answers with a problem document, in the dialect of the path's API, and writes the access log.

    With `close` the connection is closed afterwards, because the request's body has not been read.
    """
    request = ASGIRequest(scope, io.BytesIO())
    attach_context(request)
    response = as_response(refusal, request)
    if close:
        response["Connection"] = "close"
    access_log_entry(request).tell(response.status_code)
    await send_response(response, request, send)


async def send_response(response: HttpResponse, request: ASGIRequest, send: Any) -> None:
    """Sends a response that is complete already."""
    response["X-Request-Id"] = context_of(request).request_id
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    body = b"" if request.method == "HEAD" else response.content
    await send({"type": "http.response.body", "body": body})
