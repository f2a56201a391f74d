"""Request bodies under ASGI: limited in size by route and in time, and kept on disk beyond 64 KiB.

The router reads the whole body before a request takes a thread, so that a slow client costs a connection only.
"""

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from typing import IO, Any

from django.conf import settings

from orchestrator.http.asgi.responses import overloaded
from orchestrator.http.errors.problems import ApiError
from runtime_jobs.models.artifacts import MAX_OBJECT_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

BODY_FILE = "orchestrator.body_file"  # key of the scope: the body as a file
METHODS_WITHOUT_BODY = frozenset({"GET", "HEAD"})
METHODS_OF_UPLOADS = frozenset({"POST", "PATCH", "PUT"})
_UPLOAD_PATH = re.compile(r"/v2/(?P<repository>[^/]+)/blobs/uploads(?:/[^/]*)?")  # whole: no other path has its limit
_OUTPUT_PATH = re.compile(r"/v1/runtime/leases/[^/]+/output")
_OBJECT_PATH = re.compile(r"/v1/objects/[^/]+")
MAX_IGNORED_BYTES = 4 << 10  # of GET and HEAD, where a body has no meaning: some clients always send an empty object
IN_MEMORY_BYTES = 64 << 10
OUTPUT_FRAME_BYTES = 64  # around the base64 of an output
ANONYMOUS_BYTES = 64 << 10  # largest body of a request without credentials
DRAIN_FACTOR = 16  # times the limit is read and discarded, so that a client which sends first can read the response


class ClientDisconnected(Exception):
    """The client disconnected before its body was complete."""


def body_limit(method: str, path: str) -> int:
    """Return the largest body in bytes that a request of this method to this path may have."""
    if method in METHODS_WITHOUT_BODY:
        return MAX_IGNORED_BYTES
    if upload_repository(method, path) is not None:
        return settings.IMAGE_UPLOAD_LIMIT_BYTES
    if is_object_upload(method, path):
        return MAX_OBJECT_BYTES
    if _OUTPUT_PATH.fullmatch(path):
        return settings.RUNNER_MESSAGE_LIMIT_BYTES * 4 // 3 + OUTPUT_FRAME_BYTES  # in base64
    limits: dict[str, int] = settings.BODY_LIMITS
    if path in limits:
        return limits[path]
    found = (limit for prefix, limit in limits.items() if prefix.endswith("/") and path.startswith(prefix))
    return next(found, settings.BODY_LIMIT_BYTES)


def upload_repository(method: str, path: str) -> str | None:
    """Return the repository of an upload of a blob, or None for every other request."""
    found = _UPLOAD_PATH.fullmatch(path) if method in METHODS_OF_UPLOADS else None
    return found["repository"] if found else None


def is_object_upload(method: str, path: str) -> bool:
    """Return whether a request uploads an object to a signed address, which also has the size of the object."""
    return method == "PUT" and _OBJECT_PATH.fullmatch(path) is not None


def too_large(limit: int) -> ApiError:
    """Return the refusal of a body above `limit` bytes."""
    return ApiError(
        413, "payload_too_large", f"The body of a request for this path may have at most {limit} bytes.", limit=limit
    )


def unauthenticated() -> ApiError:
    """Return the refusal of a large body without credentials."""
    challenge = {"WWW-Authenticate": 'Bearer realm="runtime-orchestrator"'}
    return ApiError(401, "unauthenticated", "A valid token is needed.", headers=challenge)


class Spool:
    """The number of bytes that this process keeps for bodies that are incomplete or wait for a thread."""

    def __init__(self) -> None:
        self.size = 0


_spool = Spool()


class Body:
    """The body of one request: in memory up to 64 KiB, then in an unnamed temporary file."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - closed by `close`
        self.size = 0

    def write(self, chunk: bytes) -> None:
        """Append a chunk.

        Raises:
            ApiError: 503 `overloaded`; the bodies of this process take BODY_SPOOL_BYTES of disk space.
        """
        if self.size + len(chunk) > IN_MEMORY_BYTES and _spool.size + len(chunk) > settings.BODY_SPOOL_BYTES:
            raise overloaded("Too many large requests are being received.")
        self.file.write(chunk)
        self.size += len(chunk)
        _spool.size += len(chunk)

    def close(self) -> None:
        """Delete the body. A second call has no effect."""
        _spool.size -= self.size
        self.size = 0
        self.file.close()


async def read_body(scope: Message, receive: Receive, *, upload_refusal: ApiError | None = None) -> Body:
    """Read the whole body.

    Args:
        scope: The ASGI scope of the request.
        receive: The ASGI channel that yields the body.
        upload_refusal: Why the request may not upload a large body, if it is an upload.

    Returns:
        The body; its file is at position 0.

    Raises:
        ApiError: `upload_refusal`, 401, 408, 413 or 503. Up to 16 times the limit has been read and discarded then.
        ClientDisconnected: The client disconnected.
    """
    # An upload is received elsewhere if its token or address permits it. Otherwise its view only refuses it.
    method, path = scope["method"], scope["path"]
    is_upload = upload_repository(method, path) is not None or is_object_upload(method, path)
    limit = ANONYMOUS_BYTES if is_upload else body_limit(method, path)
    refusal = upload_refusal
    allowed = limit
    if limit > ANONYMOUS_BYTES and not has_credentials(scope):
        allowed, refusal = ANONYMOUS_BYTES, unauthenticated()
    max_read = DRAIN_FACTOR * max(limit, IN_MEMORY_BYTES)
    reader = _BodyReader(receive, allowed, refusal or too_large(limit), max_read=max_read)
    headers = dict(scope["headers"])
    declared = int(headers.get(b"content-length", b"0"))
    if declared > (allowed if b"expect" in headers else reader.max_read):
        raise reader.refusal
    try:
        async with asyncio.timeout(settings.BODY_SECONDS):
            return await reader.read()
    except TimeoutError:
        detail = f"The body must arrive within {settings.BODY_SECONDS:g} seconds."
        raise ApiError(408, "request_timeout", detail) from None


class _BodyReader:
    """Reads one body: keeps up to `allowed` bytes, and reads up to `max_read` bytes."""

    def __init__(self, receive: Receive, allowed: int, refusal: ApiError, *, max_read: int) -> None:
        self.receive, self.allowed, self.refusal, self.max_read = receive, allowed, refusal, max_read

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
        size, has_more, refusal = 0, True, None
        while has_more and size <= self.max_read:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk, has_more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if refusal is None and size > self.allowed:
                refusal = self.refusal
                body.close()  # the rest is discarded: nothing of the body is kept meanwhile
            elif refusal is None and chunk:
                try:
                    body.write(chunk)
                except ApiError as spool_is_full:
                    refusal = spool_is_full
                    body.close()
        if refusal is not None:
            raise refusal


def has_credentials(scope: Message) -> bool:
    """Return whether the request carries anything that could authenticate it. Views verify the credentials."""
    carriers = {b"authorization", b"cookie", b"x-hub-signature-256"}
    if settings.CERTIFICATE_HEADER:
        carriers.add(settings.CERTIFICATE_HEADER.lower().encode("latin-1"))
    return any(name in carriers and value for name, value in scope["headers"])


def with_content_length(scope: Message, size: int) -> dict[str, Any]:
    """Return the scope with the true length of the body in bytes.

    Django REST framework treats a chunked body, which declares no length, as empty.
    """
    framing = {b"content-length", b"transfer-encoding"}
    headers = [(name, value) for name, value in scope["headers"] if name not in framing]
    if size:
        headers.append((b"content-length", str(size).encode()))
    return {**scope, "headers": headers}


def replay(body: bytes, receive_next: Receive) -> Receive:
    """Return a `receive` that yields the whole body as one message, then the messages of `receive_next`."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        return next(messages, None) or await receive_next()

    return receive
