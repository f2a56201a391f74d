"""Request bodies under ASGI: read within a size and a time, kept on disk beyond 64 KiB, before a thread is taken."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from typing import IO, Any

from django.conf import settings

from orchestrator.http.asgi.responses import overloaded
from orchestrator.http.asgi.routes import body_limit
from orchestrator.http.errors.problems import ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

BODY_FILE = "orchestrator.body_file"  # in the scope: the body, where it is not in the message
IN_MEMORY_BYTES = 64 << 10
ANONYMOUS_BYTES = 64 << 10  # largest body of a request that carries no credentials
DRAINED = 16  # times the limit: so much is read and dropped, so that a client which sends first reads the response


class ClientGone(Exception):
    """The client disconnected before its body was complete."""


def too_large(limit: int) -> ApiError:
    """Returns the refusal of a body above `limit` bytes."""
    return ApiError(413, "payload_too_large", f"The body may have at most {limit} bytes here.", limit=limit)


def unauthenticated() -> ApiError:
    """Returns the refusal of a large body without credentials."""
    challenge = {"WWW-Authenticate": 'Bearer realm="runtime-orchestrator"'}
    return ApiError(401, "unauthenticated", "A valid token is needed.", headers=challenge)


class Spool:
    """Bytes that this process keeps on disk for bodies that are incomplete or wait for a thread."""

    def __init__(self) -> None:
        self.size = 0


_spool = Spool()


class Body:
    """One request's body: in memory up to 64 KiB, then in an unnamed temporary file."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - closed by `close`
        self.size = 0

    def write(self, chunk: bytes) -> None:
        """Appends; raises Refusal `overloaded` where bodies take all the disk space that they may have."""
        if self.size + len(chunk) > IN_MEMORY_BYTES and _spool.size + len(chunk) > settings.BODY_SPOOL_BYTES:
            raise overloaded("Too many large requests are being received.")
        self.file.write(chunk)
        self.size += len(chunk)
        _spool.size += len(chunk)

    def close(self) -> None:
        """Deletes the body. A second call changes nothing."""
        _spool.size -= self.size
        self.size = 0
        self.file.close()


async def read_body(scope: Message, receive: Receive) -> Body:
    """Reads the whole body.

    Raises:
        Refusal: 401, 408, 413 or 503. What the client sent up to 16 times the limit has been read and dropped then.
        ClientGone: the client disconnected.
    """
    limit = body_limit(scope["method"], scope["path"])
    refusal = None
    allowed = limit
    if limit > ANONYMOUS_BYTES and not has_credentials(scope):
        allowed, refusal = ANONYMOUS_BYTES, unauthenticated()
    reader = _Reader(receive, allowed, refusal or too_large(limit), most=DRAINED * max(limit, IN_MEMORY_BYTES))
    headers = dict(scope["headers"])
    declared = int(headers.get(b"content-length", b"0"))
    if declared > (allowed if b"expect" in headers else reader.most):
        raise reader.refusal
    try:
        async with asyncio.timeout(settings.BODY_SECONDS):
            return await reader.read()
    except TimeoutError:
        detail = f"The body must arrive within {settings.BODY_SECONDS:g} seconds."
        raise ApiError(408, "request_timeout", detail) from None


class _Reader:
    """Reads one body; `allowed` bytes are kept, up to `most` are read."""

    def __init__(self, receive: Receive, allowed: int, refusal: ApiError, *, most: int) -> None:
        self.receive, self.allowed, self.refusal, self.most = receive, allowed, refusal, most

    async def read(self) -> Body:
        body = Body()
        try:
            await self._fill(body)
        except BaseException:
            body.close()
            raise
        body.file.seek(0)
        return body

    async def _fill(self, body: Body) -> None:
        size, more, refusal = 0, True, None
        while more and size <= self.most:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if refusal is None and size > self.allowed:
                refusal = self.refusal
                body.close()  # what follows is dropped, so nothing of it is kept meanwhile
            elif refusal is None and chunk:
                try:
                    body.write(chunk)
                except ApiError as full:
                    refusal = full
                    body.close()
        if refusal is not None:
            raise refusal


def has_credentials(scope: Message) -> bool:
    """Says whether the request carries anything that could authenticate it; views decide whether it does."""
    carriers = {b"authorization", b"cookie", b"x-hub-signature-256"}
    if settings.CERTIFICATE_HEADER:
        carriers.add(settings.CERTIFICATE_HEADER.lower().encode("latin-1"))
    return any(name in carriers and value for name, value in scope["headers"])


def measured(scope: Message, size: int) -> dict[str, Any]:
    """Returns the scope with the body's true length: Django REST framework takes a body without one for empty."""
    framing = {b"content-length", b"transfer-encoding"}
    headers = [(name, value) for name, value in scope["headers"] if name not in framing]
    if size:
        headers.append((b"content-length", str(size).encode()))
    return {**scope, "headers": headers}


def replay(body: bytes, afterwards: Receive) -> Receive:
    """Returns a `receive` that yields the whole body as one message, then what `afterwards` yields: the disconnect."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> Message:
        return next(messages, None) or await afterwards()

    return replayed
