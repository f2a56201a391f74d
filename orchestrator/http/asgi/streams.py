"""Streamed responses: limits by caller, organization and process, time limits, and early ends.

Admission happens in the thread of the view, everything else in the event loop. Each process counts its own streams.
"""

import asyncio
import hashlib
import logging
import threading
import time
import types
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, cast

from asgiref.sync import ThreadSensitiveContext
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase

from orchestrator.http.asgi.http_protocol import EXTENSION, ClientConnection
from orchestrator.http.auth.credentials import Credential, revoked_among
from orchestrator.http.errors.problems import ApiError
from orchestrator.pubsub.log_hub import SourceUnavailable, in_reader_thread
from orchestrator.pubsub.metrics import ENDED, STREAMS, STREAMS_REFUSED
from orchestrator.pubsub.shutdown import on_shutdown
from runtime_jobs.db_errors import log_level_of

log = logging.getLogger(__name__)

Send = Callable[[Any], Awaitable[None]]
LimitKey = tuple[str, str]  # a limit or count: `caller`, `organization`, `process` or `kind`, and its name
KINDS = ("follow", "read", "events", "dashboard", "graphql")
RETRY_AFTER = 5  # seconds
EARLY_REFUSAL_SECONDS = 5.0
REMEMBERED_TOKENS = 1000
EVENT_FEED = "/api/dashboard/events"
DISCONNECT_SECONDS = 1.0  # for the server to report that its connection was dropped
FAREWELL_SECONDS = 1.0  # for a client to take the last part of a stream when the process ends


class StreamEnd(StrEnum):
    """The reason for which a stream ended.

    Only `complete` ends the response. Otherwise the connection is dropped, so that a client can distinguish a response
    that was cut off from a complete one.
    """

    COMPLETE = "complete"
    DISCONNECTED = "disconnected"
    STALLED = "stalled"  # the client read nothing for STREAM_STALL_SECONDS
    EXPIRED = "expired"  # STREAM_MAX_SECONDS
    REVOKED = "revoked"
    SHUTDOWN = "shutdown"
    FAILED = "failed"


class Stalled(Exception):
    """The client read nothing for STREAM_STALL_SECONDS."""


class Stream:
    """One admitted stream. It counts until `close`, even if its response is never sent."""

    def __init__(self, registry: "StreamRegistry", credential: Credential, kind: str) -> None:
        self.credential, self.limit_keys = credential, [*_limits(credential), ("kind", kind)]
        self._registry = registry
        self._is_open = True
        self._cut: asyncio.Future[StreamEnd] | None = None

    def attach(self) -> "asyncio.Future[StreamEnd]":
        """Return a future of the running loop that is done once the stream must end early."""
        self._cut = asyncio.get_running_loop().create_future()
        self._registry.attach(self)
        return self._cut

    def cut(self, reason: StreamEnd) -> None:
        """End the stream early; in the event loop."""
        if self._cut is not None and not self._cut.done():
            self._cut.set_result(reason)

    def close(self) -> None:
        """Stop counting the stream. Safe to call twice and from any thread."""
        if self._is_open:
            self._is_open = False
            self._registry.remove(self.limit_keys)

    def __del__(self) -> None:
        if self._is_open:  # without the lock: a finalizer may run in a thread that holds it
            self._registry.abandoned.append(self.limit_keys)


class StreamRegistry:
    """The open streams of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[LimitKey] = Counter()
        self.abandoned: deque[list[LimitKey]] = deque()  # of streams that were never closed
        self._attached: set[Stream] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checking: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._token_credentials: OrderedDict[bytes, tuple[Credential, float]] = OrderedDict()

    def admit(self, credential: Credential, kind: str, *, authorization: str = "") -> Stream:
        """Count a new stream.

        Args:
            credential: The caller, and the organization whose jobs it reads.
            kind: Label of the metrics, one of KINDS.
            authorization: The header that contained the credential; empty for a browser's session.

        Raises:
            ApiError: 429 `too_many_streams` at the limit of the caller or the organization, 503 `busy` at the limit of
                the process.
        """
        self._remove_abandoned()
        with self._lock:
            if authorization:
                self._remember(_digest(authorization.encode("latin-1", "replace")), credential)
            refusal = self._refusal(credential)
            if refusal is not None:
                raise refusal
            stream = Stream(self, credential, kind)
            self._counts.update(stream.limit_keys)
        return stream

    def early_refusal(self, authorization: bytes) -> ApiError | None:
        """Return the refusal that the view would raise, before the request takes a thread and a query.

        Only tokens that requested a stream within the last EARLY_REFUSAL_SECONDS are known here. Every other request
        is left to the view. A token that was revoked within that time is answered 429 instead of 401.

        Args:
            authorization: The `Authorization` header of the request.

        Returns:
            None where the view must decide.
        """
        self._remove_abandoned()
        with self._lock:
            credential, known_until = self._token_credentials.get(_digest(authorization), (None, 0.0))
            if credential is None or known_until < time.monotonic():
                return None
            return self._refusal(credential)

    def _refusal(self, credential: Credential) -> ApiError | None:
        for key, limit in _limits(credential).items():
            if self._counts[key] >= limit:
                STREAMS_REFUSED.labels(key[0]).inc()
                return _refusal(key[0], limit, self._counts[key])
        return None

    def _remove_abandoned(self) -> None:
        while self.abandoned:
            with suppress(IndexError):  # another thread was faster
                self.remove(self.abandoned.popleft())

    def _remember(self, digest: bytes, credential: Credential) -> None:
        self._token_credentials.pop(digest, None)
        self._token_credentials[digest] = credential, time.monotonic() + EARLY_REFUSAL_SECONDS
        if len(self._token_credentials) > REMEMBERED_TOKENS:
            self._token_credentials.popitem(last=False)

    def remove(self, limit_keys: list[LimitKey]) -> None:
        """Stop counting a stream."""
        with self._lock:
            self._counts.subtract(limit_keys)
            for key in limit_keys:
                if not self._counts[key]:
                    del self._counts[key]

    def number(self, kind: str) -> int:
        """Return the number of open streams of a kind."""
        return self._counts.get(("kind", kind), 0)

    def attach(self, stream: Stream) -> None:
        """Register a stream for re-checks and for the end of the process; in the event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._attached, self._checking, self._is_stopping = loop, set(), None, False
            on_shutdown(self.stop)
        self._attached.add(stream)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._recheck())
        if self._is_stopping:
            stream.cut(StreamEnd.SHUTDOWN)

    def detach(self, stream: Stream) -> None:
        """Remove and close a stream that has ended; in the event loop."""
        self._attached.discard(stream)
        stream.close()
        if not self._attached and self._checking is not None:
            self._checking.cancel()
            self._checking = None

    def stop(self) -> None:
        """End all streams, because the process was asked to stop and the server waits for its responses."""
        self._is_stopping = True
        for stream in list(self._attached):
            stream.cut(StreamEnd.SHUTDOWN)

    async def _recheck(self) -> None:
        """End streams whose credential was revoked, has expired, or has lost its organization or scope."""
        while True:
            await asyncio.sleep(settings.STREAM_AUTH_SECONDS)
            try:
                revoked = await in_reader_thread(revoked_among, {stream.credential for stream in self._attached})
            except (DatabaseError, InterfaceError) as error:
                # Without the database the streams read nothing new either. The next round checks again.
                log.log(log_level_of(error), "the credentials of streams were not re-checked: %s", type(error).__name__)
                continue
            for stream in list(self._attached):
                if stream.credential in revoked:
                    stream.cut(StreamEnd.REVOKED)


def _limits(credential: Credential) -> dict[LimitKey, int]:
    """Return the limits that apply to a stream, the narrowest first."""
    limits: dict[LimitKey, int] = {("caller", credential.key): settings.STREAMS_PER_CALLER}
    if credential.counts_for_organization:
        limits["organization", credential.org_slug] = settings.STREAMS_PER_ORGANIZATION
    return limits | {("process", ""): settings.STREAMS_PER_PROCESS}


def _digest(authorization: bytes) -> bytes:
    return hashlib.sha256(authorization).digest()


def _refusal(scope: str, limit: int, number: int) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER)}
    if scope == "process":
        return ApiError(
            503, "busy", f"This process has {limit} open streams, which is its limit. Retry later.", headers=headers
        )
    owner = {"caller": "This token or user", "organization": "The organization"}[scope]
    detail = f"{owner} has {number} open streams of at most {limit} in this process. Close one, or retry later."
    return ApiError(
        429, "too_many_streams", detail, headers=headers, limit=limit, open_streams=number, limited_by=scope
    )


registry = StreamRegistry()

for _kind in KINDS:
    STREAMS.labels(_kind).set_function(partial(registry.number, _kind))


def early_stream_refusal(scope: Any) -> ApiError | None:
    """Return the refusal of a stream that needs no view; None for every other request.

    Args:
        scope: The ASGI scope of the request.
    """
    if scope["method"] != "GET" or not _is_stream(scope["path"]):
        return None
    authorization = dict(scope["headers"]).get(b"authorization")
    return registry.early_refusal(authorization) if authorization else None


def _is_stream(path: str) -> bool:
    return path == EVENT_FEED or (path.startswith("/v1/") and path.endswith(("/logs", "/logs/stream")))


class CountedResponse(StreamingHttpResponse):
    """A streamed response that counts for the limits.

    `deliver` closes its content, an asynchronous generator. Django leaves that to the garbage collector if the
    transmission was interrupted.

    Attributes:
        farewell: The last part of a stream that ends because the process does. Empty: the connection is dropped.
        has_begun: The headers were sent.
    """

    def __init__(
        self, content: AsyncGenerator[bytes, None], *, stream: Stream, content_type: str, farewell: bytes = b""
    ) -> None:
        super().__init__(content, content_type=content_type)
        self.stream, self.content_source, self.farewell = stream, content, farewell
        self.has_begun = False
        self._resource_closers.append(stream.close)  # type: ignore[attr-defined] # called by `close` of a response


async def deliver(
    response: HttpResponseBase,
    send_response: Callable[[HttpResponseBase, Send], Awaitable[None]],
    send: Send,
    disconnected: "asyncio.Future[Any]",
    scope: Any,
) -> None:
    """Send a streamed response until it is complete or ends early.

    Args:
        response: The response.
        send_response: Sends a whole response with the given `send`.
        send: The ASGI channel of the response.
        disconnected: Done once the client has disconnected.
        scope: The ASGI scope of the request.
    """
    stream = response.stream if isinstance(response, CountedResponse) else None
    cut = stream.attach() if stream else asyncio.get_running_loop().create_future()
    end = StreamEnd.FAILED
    limited_send = _with_timeout(send)
    try:
        if isinstance(response, CountedResponse):
            end = await _send_until_end(_send_content(response, limited_send), disconnected, cut)
        else:
            # Django reads content that is not an asynchronous iterator in the thread of this context.
            async with ThreadSensitiveContext():
                end = await _send_until_end(send_response(response, limited_send), disconnected, cut)
    finally:
        if isinstance(response, CountedResponse):
            registry.detach(response.stream)
            ENDED.labels(end).inc()
            await response.content_source.aclose()
    if end == StreamEnd.SHUTDOWN and isinstance(response, CountedResponse) and await _dismiss(response, limited_send):
        return
    if end not in {StreamEnd.COMPLETE, StreamEnd.DISCONNECTED}:
        log.info("a stream ended early: %s", end)
        await _drop_connection(scope, disconnected)


async def _send_content(response: CountedResponse, send: Send) -> None:
    """Send a stream part by part as its content yields them.

    Django's own handler passes each part through two more generators. With a thousand followers of one log that was a
    sixth of the time until the last one has a chunk.
    """
    headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in response.items()]
    headers += [(b"Set-Cookie", cookie.OutputString().encode("latin-1")) for cookie in response.cookies.values()]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    response.has_begun = True
    async for part in response.content_source:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _dismiss(response: CountedResponse, send: Send) -> bool:
    """End a stream with its farewell. Returns whether the client has taken it."""
    if not (response.farewell and response.has_begun):
        return False
    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            await send({"type": "http.response.body", "body": response.farewell, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except (TimeoutError, Stalled):
        return False
    return True


async def _send_until_end(
    sending: Awaitable[None], disconnected: "asyncio.Future[Any]", cut: "asyncio.Future[StreamEnd]"
) -> StreamEnd:
    task: asyncio.Future[Any] = asyncio.ensure_future(sending)
    try:
        limit = settings.STREAM_MAX_SECONDS
        await asyncio.wait({task, disconnected, cut}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        has_ended = task.done()
        task.cancel()
        await asyncio.wait({task})
    if has_ended:
        return _end_of(task.exception())
    if cut.done():
        return cut.result()
    return StreamEnd.DISCONNECTED if disconnected.done() else StreamEnd.EXPIRED


def _end_of(error: BaseException | None) -> StreamEnd:
    match error:
        case None:
            return StreamEnd.COMPLETE
        case Stalled():
            return StreamEnd.STALLED
        case SourceUnavailable():
            return StreamEnd.FAILED
    raise error


def _with_timeout(send: Send) -> Send:
    """Limit each message to STREAM_STALL_SECONDS. `send` waits while the server's buffer is full.

    A message that needs no wait gets no timer: for a thousand followers of one log the timers took as long as the rest.
    """

    async def send_with_timeout(message: Any) -> None:
        sending = cast("Coroutine[Any, Any, None]", send(message))
        try:
            first = sending.send(None)
        except StopIteration:
            return
        is_late = False
        try:
            async with asyncio.timeout(settings.STREAM_STALL_SECONDS):
                await cast("Awaitable[None]", _continued(sending, first))
        except TimeoutError:
            is_late = True
        if is_late:  # outside: otherwise the exception's context keeps the task and its data until a garbage collection
            raise Stalled

    return send_with_timeout


@types.coroutine
def _continued(coroutine: "Coroutine[Any, Any, None]", first: Any) -> "Generator[Any, Any, None]":
    """Continue a coroutine that has begun.

    Args:
        coroutine: The coroutine.
        first: What it waits for.
    """
    awaited = first
    while True:
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 of any kind: a cancellation, too
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, value)
        try:
            awaited = step()
        except StopIteration:
            return


async def _drop_connection(scope: Any, disconnected: "asyncio.Future[Any]") -> None:
    """Close the connection without the end of the response. A server without the extension does so by itself later."""
    connection = scope.get("extensions", {}).get(EXTENSION)
    if isinstance(connection, ClientConnection):
        connection.drop()
        await asyncio.wait({disconnected}, timeout=DISCONNECT_SECONDS)
