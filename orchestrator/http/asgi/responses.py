"""Responses that the event loop sends without a thread: refusals, health checks, refused WebSockets."""

import io
import json
from contextlib import suppress
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from django.urls import Resolver404, resolve

from orchestrator.http.errors.problems import ApiError, as_response
from orchestrator.http.observability.access_log import AccessLogEntry, access_log_entry
from orchestrator.http.observability.request_context import attach_context, context_of
from orchestrator.http.observability.routes import UNMATCHED
from runtime_jobs.identifiers import new_id

PATH_PARAMS, ROUTE = "path_params", "orchestrator.route"  # keys of a WebSocket's scope


def overloaded(reason: str) -> ApiError:
    """Return the 503 of a request for which this process has no capacity now."""
    detail = f"{reason} Repeat the request after Retry-After seconds."
    return ApiError(503, "overloaded", detail, headers={"Retry-After": "1"})


async def send_refusal(refusal: ApiError, scope: Any, send: Any, *, close: bool = False) -> None:
    """Send a problem document in the format of the path's API, and write the access log.

    Args:
        refusal: The error.
        scope: The ASGI scope of the request.
        send: The ASGI channel of the response.
        close: Close the connection afterwards, because the body of the request has not been read.
    """
    request = ASGIRequest(scope, io.BytesIO())
    attach_context(request)
    with suppress(Resolver404):
        request.resolver_match = resolve(request.path_info)  # 15 to 50 us, for the route in the log and the metrics
    response = as_response(refusal, request)
    if close:
        response["Connection"] = "close"
    access_log_entry(request).record(response.status_code)
    await send_response(response, request, send)


async def send_response(response: HttpResponse, request: ASGIRequest, send: Any) -> None:
    """Send a complete response."""
    response["X-Request-Id"] = context_of(request).request_id
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    body = b"" if request.method == "HEAD" else response.content
    await send({"type": "http.response.body", "body": body})


async def send_json(document: dict[str, Any], scope: Any, send: Any, *, status: int = 200) -> None:
    """Send a JSON document; without a body to HEAD."""
    body = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-request-id", new_id("req").encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def refuse_websocket(scope: Any, receive: Any, send: Any, refusal: ApiError | None = None) -> None:
    """Answer a WebSocket handshake with an error, or close it where the server cannot send a response to a handshake.

    Args:
        scope: The ASGI scope of the connection.
        receive: Its ASGI channel for incoming messages. The first message is received here if there is no `refusal`.
        send: Its ASGI channel for outgoing messages.
        refusal: The error, in the format of the path's API; by default 404.
    """
    if refusal is None:
        await receive()
        refusal = ApiError(404, "not_found", "There is no WebSocket at this address.")
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    request = ASGIRequest({**scope, "type": "http", "method": "GET"}, io.BytesIO())
    attach_context(request)
    response = as_response(refusal, request)
    response["X-Request-Id"] = context_of(request).request_id
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.content})
    AccessLogEntry(context_of(request), "GET", scope.get(ROUTE, UNMATCHED)).record(refusal.status)
