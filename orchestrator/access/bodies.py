"""Under ASGI: a request's body is read here, within a limit and a time, before Django would read it without either."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.conf import settings

from orchestrator.access.problems import Refusal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

REFUSAL = "orchestrator.refusal"  # in the scope: what the middleware shall answer
DRAINED = 16  # times the limit: so much is read and dropped, so that its sender comes to hear the answer


def too_large() -> Refusal:
    limit = settings.BODY_LIMIT_BYTES
    return Refusal(413, "payload_too_large", f"A body has at most {limit} bytes.", limit=limit)


class Gone(Exception):
    """The caller went away before its body was there."""


class MeasuredBodies:
    """An ASGI application around another. The inner one sees each body whole, with its Content-Length: Django's REST
    framework takes a body without one, as chunked ones are, for empty."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        try:
            body = await _read(scope, receive)
        except Gone:
            return
        except Refusal as refusal:
            await self.inner(_measured(scope, b"") | {REFUSAL: refusal}, replay(b"", _silence), send)
        else:
            await self.inner(_measured(scope, body), replay(body, receive), send)


async def _read(scope: Message, receive: Receive) -> bytes:
    headers = dict(scope["headers"])
    declared = headers.get(b"content-length", b"0")
    if int(declared) > settings.BODY_LIMIT_BYTES * (1 if b"expect" in headers else DRAINED):
        raise too_large()
    try:
        async with asyncio.timeout(settings.BODY_SECONDS):
            return await _collected(receive)
    except TimeoutError:
        raise Refusal(408, "request_timeout", "The body took too long.") from None


async def _collected(receive: Receive) -> bytes:
    chunks, size = [], 0
    while size <= settings.BODY_LIMIT_BYTES * DRAINED:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= settings.BODY_LIMIT_BYTES:
            chunks.append(chunk)
        if not message.get("more_body", False):
            break
    if size > settings.BODY_LIMIT_BYTES:
        raise too_large()
    return b"".join(chunks)


def _measured(scope: Message, body: bytes) -> dict[str, Any]:
    framing = {b"content-length", b"transfer-encoding"}
    headers = [(name, value) for name, value in scope["headers"] if name not in framing]
    if body:
        headers.append((b"content-length", str(len(body)).encode()))
    return {**scope, "headers": headers}


def replay(body: bytes, afterwards: Receive) -> Receive:
    """The whole body as one message, then whatever comes after it: that the caller has gone."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> Message:
        return next(messages, None) or await afterwards()

    return replayed


async def _silence() -> Message:
    """After a refusal nobody listens: to ask the server for more would invite the rest of the body."""
    return await asyncio.get_running_loop().create_future()
