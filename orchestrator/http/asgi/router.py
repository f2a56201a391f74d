"""Routes ASGI scopes before Django: health checks, WebSockets, long polls, and requests that run in a thread."""

import json
import time
from collections.abc import Mapping

from orchestrator.http.asgi.bodies import (
    BODY_FILE,
    Application,
    ClientGone,
    Message,
    Receive,
    Send,
    measured,
    read_body,
    replay,
)
from orchestrator.http.asgi.responses import send_refusal
from orchestrator.http.asgi.routes import HEALTH, READING, can_wait
from orchestrator.http.errors.problems import MEDIA_TYPE, ApiError, problem
from orchestrator.http.observability import metrics
from runtime_jobs.identifiers import new_id

ALIVE = b'{"status": "alive"}'


class Router:
    """The ASGI application of the server.

    Args:
        requests: application for requests that are answered at once, and for streams. It finds the body in the scope's
            `BODY_FILE`.
        long_polls: application for requests that may wait. It gets the body as one message.
        websockets: applications for WebSocket connections by path. A path that is not here is answered 404.
    """

    def __init__(
        self, *, requests: Application, long_polls: Application, websockets: Mapping[str, Application] | None = None
    ) -> None:
        self.requests = requests
        self.long_polls = long_polls
        self.websockets = websockets or {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http" if scope["path"] == HEALTH and scope["method"] in READING and not scope["query_string"]:
                await _answer_alive(scope, send)
            case "http":
                await self._answer_request(scope, receive, send)
            case "websocket":
                await self.websockets.get(scope["path"], refuse_websocket)(scope, receive, send)
            case other:
                raise ValueError(f"HTTP and WebSocket only, not {other}.")  # an ASGI server then goes without lifespan

    async def _answer_request(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive)
        except ClientGone:
            return
        except ApiError as refusal:
            # A client that waits for `100 Continue` has sent nothing yet: the connection cannot be used again.
            await send_refusal(refusal, scope, send, close=any(name == b"expect" for name, _ in scope["headers"]))
            return
        try:
            scope = measured(scope, body.size)
            if can_wait(scope["method"], scope["path"]):
                await self.long_polls(scope, replay(body.file.read(), receive), send)
            else:
                await self.requests(scope | {BODY_FILE: body.file}, receive, send)
        finally:
            body.close()


async def _answer_alive(scope: Message, send: Send) -> None:
    """Answers whatever the database does and however many requests wait for a thread.

    A load balancer must not kill processes because their database is slow.
    """
    begun = time.monotonic()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(ALIVE)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-request-id", new_id("req").encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else ALIVE})
    metrics.count(scope["method"], HEALTH, 200, time.monotonic() - begun)


async def refuse_websocket(scope: Message, receive: Receive, send: Send) -> None:
    """Answers a handshake for a path without WebSockets with 404, where the server can send a response to one."""
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    request_id = new_id("req")
    refusal = ApiError(404, "not_found", "There is no WebSocket at this address.")
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"x-request-id", request_id.encode())]
    body = json.dumps(problem(refusal, request_id)).encode()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "websocket.http.response.start", "status": 404, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
