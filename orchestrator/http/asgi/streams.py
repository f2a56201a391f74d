"""Streamed answers: how many a caller may have, how long a client may take nothing, and what ends them early.

Admission happens in the thread of the view, everything else in the event loop. Counts are those of this process."""

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase

from orchestrator.http.asgi.base_protocol import EXTENSION, ClientConnection
from orchestrator.http.auth.credentials import Credential, revoked_among
from orchestrator.http.errors.problems import ApiError
from orchestrator.notifications.log_hub import SourceUnavailable, in_reader_thread
from orchestrator.notifications.shutdown import on_shutdown
from orchestrator.notifications.stream_metrics import ENDED, REFUSED, STREAMS

log = logging.getLogger(__name__)

Send = Callable[[Any], Awaitable[None]]
Place = tuple[str, str]  # caller, organization, process or kind, and which
KINDS = ("follow", "read")
RETRY_AFTER = 5  # seconds
DISCONNECT_WITHIN = 1.0  # seconds for the server to notice that its connection was dropped


class StreamEnd(StrEnum):
    """Why a stream ended. Only `complete` ends the answer; otherwise the connection is dropped, so that a client can
    tell an answer that was cut off from a whole one."""

    COMPLETE = "complete"
    DISCONNECTED = "disconnected"
    STALLED = "stalled"  # the client took nothing for STREAM_STALL_SECONDS
    EXPIRED = "expired"  # STREAM_MAX_SECONDS
    REVOKED = "revoked"
    SHUTDOWN = "shutdown"
    FAILED = "failed"


class Stalled(Exception):
    """The client took nothing for STREAM_STALL_SECONDS."""


class Stream:
    """One admitted stream. It counts until `close`, also if its answer is never sent."""

    def __init__(self, registry: "StreamRegistry", credential: Credential, kind: str) -> None:
        self.credential, self.places = credential, [*_limits(credential), ("kind", kind)]
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
        """Free its place. Safe to call twice and from any thread."""
        if self._is_open:
            self._is_open = False
            self._registry.remove(self.places)

    def __del__(self) -> None:
        if self._is_open:  # no lock is taken here: a finalizer may run anywhere, also where the lock is held
            self._registry.abandoned.append(self.places)


class StreamRegistry:
    """The open streams of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Place] = Counter()
        self.abandoned: deque[list[Place]] = deque()  # of streams that were never closed
        self._attached: set[Stream] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checking: asyncio.Task[None] | None = None
        self._is_stopping = False

    def admit(self, credential: Credential, kind: str) -> Stream:
        """Count a new stream.

        Args:
            credential: Who asks, and whose jobs it reads.
            kind: For the metrics, one of KINDS.

        Raises:
            Refusal: 429 `too_many_streams` at the limit of the caller or of the organization, 503 `busy` at that of
                the process."""
        while self.abandoned:
            self.remove(self.abandoned.popleft())
        with self._lock:
            for place, limit in _limits(credential).items():
                if self._counts[place] >= limit:
                    REFUSED.labels(place[0]).inc()
                    raise _refusal(place[0], limit, self._counts[place])
            stream = Stream(self, credential, kind)
            self._counts.update(stream.places)
        return stream

    def remove(self, places: list[Place]) -> None:
        with self._lock:
            self._counts.subtract(places)
            for place in places:
                if not self._counts[place]:
                    del self._counts[place]

    def number(self, kind: str) -> int:
        return self._counts.get(("kind", kind), 0)

    def attach(self, stream: Stream) -> None:
        """Keep it for re-checks and for the end of the process; in the event loop."""
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
        self._attached.discard(stream)
        stream.close()
        if not self._attached and self._checking is not None:
            self._checking.cancel()
            self._checking = None

    def stop(self) -> None:
        """End all streams: the process was asked to stop, and the server waits for its answers."""
        self._is_stopping = True
        for stream in list(self._attached):
            stream.cut(StreamEnd.SHUTDOWN)

    async def _recheck(self) -> None:
        """End the streams whose credential was revoked, expired or lost its organization or scope."""
        while True:
            await asyncio.sleep(settings.STREAM_AUTH_SECONDS)
            try:
                revoked = await in_reader_thread(revoked_among, {stream.credential for stream in self._attached})
            except (DatabaseError, InterfaceError) as error:
                # Without the database nothing new is read either; the next round checks again.
                log.warning("the credentials of streams were not re-checked: %s", type(error).__name__)
                continue
            for stream in list(self._attached):
                if stream.credential in revoked:
                    stream.cut(StreamEnd.REVOKED)


def _limits(credential: Credential) -> dict[Place, int]:
    """Return what a stream counts for, narrowest first, each with its limit."""
    found: dict[Place, int] = {("caller", credential.key): settings.STREAMS_PER_CALLER}
    if credential.counts_for_organization:
        found["organization", credential.org_slug] = settings.STREAMS_PER_ORGANIZATION
    return found | {("process", ""): settings.STREAMS_PER_PROCESS}


def _refusal(place: str, limit: int, number: int) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER)}
    if place == "process":
        return ApiError(503, "busy", f"This server has {limit} open streams; that is its limit.", headers=headers)
    owner = {"caller": "This token or user", "organization": "The organization"}[place]
    detail = f"{owner} has {number} open log streams of at most {limit} in this process. Close one, or try again later."
    return ApiError(
        429, "too_many_streams", detail, headers=headers, limit=limit, open_streams=number, limited_by=place
    )


registry = StreamRegistry()
for _kind in KINDS:
    STREAMS.labels(_kind).set_function(partial(registry.number, _kind))


class CountedResponse(StreamingHttpResponse):
    """A streamed answer that has a place in the registry. `deliver` closes its content, an asynchronous generator:
    Django leaves that to the garbage collector where sending was interrupted."""

    def __init__(self, content: AsyncGenerator[bytes, None], *, stream: Stream, content_type: str) -> None:
        super().__init__(content, content_type=content_type)
        self.stream, self.content_source = stream, content
        self._resource_closers.append(stream.close)  # type: ignore[attr-defined] # what `close` of an answer calls


async def deliver(
    response: HttpResponseBase,
    send_response: Callable[[HttpResponseBase, Send], Awaitable[None]],
    send: Send,
    left: "asyncio.Future[Any]",
    scope: Any,
) -> None:
    """Send a streamed answer until its end, or until something ends it early.

    Args:
        response: The answer.
        send_response: Sends all of an answer with the given `send`.
        send: Of the server.
        left: Done once the client has disconnected.
        scope: Of the request."""
    stream = response.stream if isinstance(response, CountedResponse) else None
    cut = stream.attach() if stream else asyncio.get_running_loop().create_future()
    end = StreamEnd.FAILED
    try:
        # Django reads an answer that is no asynchronous iterator in the thread of this context.
        async with ThreadSensitiveContext():
            end = await _sent(send_response(response, _in_time(send)), left, cut)
    finally:
        if isinstance(response, CountedResponse):
            registry.detach(response.stream)
            ENDED.labels(end).inc()
            await response.content_source.aclose()
    if end not in {StreamEnd.COMPLETE, StreamEnd.DISCONNECTED}:
        log.info("a stream ended early: %s", end)
        await _drop(scope, left)


async def _sent(sending: Awaitable[None], left: "asyncio.Future[Any]", cut: "asyncio.Future[StreamEnd]") -> StreamEnd:
    task: asyncio.Future[Any] = asyncio.ensure_future(sending)
    try:
        limit = settings.STREAM_MAX_SECONDS
        await asyncio.wait({task, left, cut}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_over = task.done()
        task.cancel()
        await asyncio.wait({task})
    if is_over:
        return _end_by(task.exception())
    if cut.done():
        return cut.result()
    return StreamEnd.DISCONNECTED if left.done() else StreamEnd.EXPIRED


def _end_by(error: BaseException | None) -> StreamEnd:
    match error:
        case None:
            return StreamEnd.COMPLETE
        case Stalled():
            return StreamEnd.STALLED
        case SourceUnavailable():
            return StreamEnd.FAILED
    raise error


def _in_time(send: Send) -> Send:
    """Give the client STREAM_STALL_SECONDS for each message. `send` waits while the server's buffer is full."""

    async def send_in_time(message: Any) -> None:
        is_late = False
        try:
            async with asyncio.timeout(settings.STREAM_STALL_SECONDS):
                await send(message)
        except TimeoutError:
            is_late = True
        if is_late:  # outside: the context of an exception would keep the task and what it sends until a collection
            raise Stalled

    return send_in_time


async def _drop(scope: Any, left: "asyncio.Future[Any]") -> None:
    """Close the connection without the end of the answer. A server without the extension does it after our return."""
    connection = scope.get("extensions", {}).get(EXTENSION)
    if isinstance(connection, ClientConnection):
        connection.drop()
        await asyncio.wait({left}, timeout=DISCONNECT_WITHIN)
