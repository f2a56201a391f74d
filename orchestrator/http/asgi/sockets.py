"""Drives WebSocket sessions: a session decides without input or output, and this module performs what it decides.

A session receives frames, the passage of time, the end of the connection and the results of operations, and returns
effects. The driver sends frames, closes the connection, and runs the operations of a session. While nothing happens a
socket costs no thread and no database connection.

    receive --frame--> session --effects--> SendText, CloseSocket, DropSocket: the connection
    timer   --time---->    ^                any other effect: `perform`, in a thread where it queries the database
                           +---- result of the operation

Memory is bounded: while a session accepts no frames, at most two further frames are read, and then the client's own
buffers fill. A session accepts none, or begins nothing new, while it has as many operations as it wants.
"""

import asyncio
import io
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest

from orchestrator.http.asgi.body_limit import Message, Receive, Send
from orchestrator.http.asgi.websocket_protocol import EXTENSION, WebSocketConnection
from orchestrator.pubsub.metrics import ENDED_SOCKETS, SOCKETS
from orchestrator.pubsub.shutdown import on_shutdown

log = logging.getLogger(__name__)

NORMAL, POLICY_VIOLATION = 1000, 1008  # codes of Close frames
# Characters above which a frame is parsed in a thread. 3.6 MB with 200,000 results took a second of the event loop.
LONG_TEXT = 64 << 10


@dataclass(frozen=True)
class SendText:
    """Send a text frame."""

    text: str


@dataclass(frozen=True)
class CloseSocket:
    """Send a Close frame, and end the connection."""

    code: int
    reason: str


@dataclass(frozen=True)
class DropSocket:
    """End the connection without a Close frame."""


Effects = Sequence[Any]
NOTHING: Effects = ()


class SocketSession(Protocol):
    """A protocol without input and output. Times are seconds on the monotonic clock.

    Attributes:
        kind: Label of the metrics.
        phase: Label of the metrics, from a finite set.
        deadline: The time at which the session wants `advance` to be called; None without a timer.
    """

    kind: str
    deadline: float | None

    @property
    def phase(self) -> str: ...

    @property
    def accepts_frames(self) -> bool:
        """Whether the next frame may be received now."""
        ...

    def parse(self, text: str) -> Any:
        """Return the message in a text frame, without using the state of the session: a long one in another thread."""
        ...

    def receive(self, frame: Any, now: float) -> Effects:
        """Receive a message, as `parse` returned it."""
        ...

    def receive_bytes(self, now: float) -> Effects: ...

    def receive_control(self, now: float) -> Effects:
        """Receive a ping or pong, which the server has answered already."""
        ...

    def advance(self, now: float) -> Effects:
        """Act on the time, which has reached `deadline`."""
        ...

    def resolve(self, result: Any, now: float) -> Effects:
        """Receive the result of an operation."""
        ...

    def fail_operation(self, now: float) -> Effects:
        """Receive the information that an operation has raised an exception."""
        ...

    def end_connection(self) -> Effects: ...

    def shut_down(self) -> Effects:
        """End the session, because the process was asked to stop."""
        ...


Perform = Callable[[Any, "asyncio.Future[None]"], Awaitable[Any]]


def handshake_request(scope: Message) -> ASGIRequest:
    """Return the handshake of a WebSocket as a request, with the scheme of its page: `https` for `wss`."""
    scheme = {"ws": "http", "wss": "https"}.get(scope.get("scheme", "ws"), "http")
    return ASGIRequest({**scope, "type": "http", "method": "GET", "scheme": scheme}, io.BytesIO())


class SocketDriver:
    """Connects one accepted WebSocket with its session until either ends."""

    def __init__(self, session: SocketSession, perform: Perform, scope: Message, receive: Receive, send: Send) -> None:
        """Prepare to drive.

        Args:
            session: The protocol.
            perform: Executes an effect that is an operation, and returns its result. The future is done once the
                connection has ended: an operation that waits should end then. Its result is still used.
            scope: The ASGI scope of the connection, which was accepted.
            receive: Its ASGI channel for incoming messages.
            send: Its ASGI channel for outgoing messages.
        """
        self.session, self._perform = session, perform
        self._receive, self._send = receive, send
        found = scope.get("extensions", {}).get(EXTENSION)
        self._connection = found if isinstance(found, WebSocketConnection) else None
        self._control_at = self._connection.control_at if self._connection else 0.0
        loop = asyncio.get_running_loop()
        self._shutdown: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._operations: set[asyncio.Future[Any]] = set()
        self._cause = ""  # why the connection has ended; empty while it is open
        self._phase = ""  # as it is counted

    async def run(self) -> None:
        """Drive until the connection has ended. Operations that have begun are awaited."""
        open_sockets.add(self)
        self._count_phase()
        receiving: asyncio.Future[Message] = asyncio.ensure_future(self._receive())
        try:
            while not self._cause:
                receiving = await self._step(receiving)
                self._count_phase()
            self._ended.set_result(None)
            while self._operations:
                await asyncio.wait(self._operations, return_when=asyncio.FIRST_COMPLETED)
                await self._apply_results()
        finally:
            if not self._ended.done():
                self._ended.set_result(None)
            receiving.cancel()
            open_sockets.discard(self)
            SOCKETS.labels(self.session.kind, self._phase).dec()
            ENDED_SOCKETS.labels(self.session.kind, self._cause or "failed").inc()

    def stop(self) -> None:
        """Request the end of the session, because the process was asked to stop."""
        if not self._shutdown.done():
            self._shutdown.set_result(None)

    def _count_phase(self) -> None:
        """Count the session in its present phase only."""
        phase = str(self.session.phase)
        if phase != self._phase:
            if self._phase:
                SOCKETS.labels(self.session.kind, self._phase).dec()
            SOCKETS.labels(self.session.kind, phase).inc()
            self._phase = phase

    async def _step(self, receiving: "asyncio.Future[Message]") -> "asyncio.Future[Message]":
        """Wait for one event, and act on it. Returns the future of the next incoming message."""
        session = self.session
        awaited: set[asyncio.Future[Any]] = {self._shutdown, *self._operations}
        if session.accepts_frames:
            awaited.add(receiving)
        deadline = session.deadline
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        now = time.monotonic()
        if self._shutdown.done():
            await self._apply(session.shut_down())
            self._cause = self._cause or "closed"
        elif receiving in awaited and receiving.done():  # before a result: the client may have disconnected
            await self._apply(await self._received(receiving.result(), now))
            return receiving if self._cause else asyncio.ensure_future(self._receive())
        elif any(operation.done() for operation in self._operations):
            await self._apply_results()
        elif deadline is not None and now >= deadline:
            await self._apply(self._timer_effects(now))
        return receiving

    async def _received(self, message: Message, now: float) -> Effects:
        if message["type"] != "websocket.receive":
            self._cause = "disconnected"
            return self.session.end_connection()
        text = message.get("text")
        if text is None:
            return self.session.receive_bytes(now)
        if len(text) <= LONG_TEXT:
            return self.session.receive(self.session.parse(text), now)
        frame = await asyncio.to_thread(self.session.parse, text)
        return self.session.receive(frame, time.monotonic())

    def _timer_effects(self, now: float) -> Effects:
        """Report a control frame that has arrived since the last look before the time itself."""
        effects: Effects = ()
        if self._connection is not None and self._connection.control_at > self._control_at:
            self._control_at = self._connection.control_at
            effects = self.session.receive_control(self._control_at)
        deadline = self.session.deadline
        return effects if deadline is None or now < deadline else self.session.advance(now)

    async def _apply_results(self) -> None:
        """Report the results of the operations that have ended, and act on them."""
        for operation in [operation for operation in self._operations if operation.done()]:
            self._operations.discard(operation)
            await self._apply(self._result_of(operation))

    def _result_of(self, operation: "asyncio.Future[Any]") -> Effects:
        error, now = operation.exception(), time.monotonic()
        if error is None:
            return self.session.resolve(operation.result(), now)
        log.error("an operation of a %s socket failed", self.session.kind, exc_info=error)
        return self.session.fail_operation(now)

    async def _apply(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case SendText(text):
                    await self._send_message({"type": "websocket.send", "text": text})
                case CloseSocket(code, reason):
                    await self._send_message({"type": "websocket.close", "code": code, "reason": reason})
                    self._cause = self._cause or "closed"
                case DropSocket():
                    self._cause = self._cause or "dropped"
                case _:
                    self._begin_operation(effect)

    def _begin_operation(self, effect: Any) -> None:
        self._operations.add(asyncio.ensure_future(self._perform(effect, self._ended)))

    async def _send_message(self, message: Message) -> None:
        """Send unless the connection has ended. A client that does not read for RESPONSE_STALL_SECONDS is cut off."""
        if self._cause:
            return
        try:
            async with asyncio.timeout(settings.RESPONSE_STALL_SECONDS):
                await self._send(message)
        except TimeoutError:
            self._cause = "stalled"
            if self._connection is not None:
                self._connection.drop()
        except OSError:  # uvicorn's ClientDisconnected among them
            self._cause = "disconnected"
        if self._cause:
            await self._apply(self.session.end_connection())


class OpenSockets:
    """The drivers of one event loop, which end when the process is asked to stop."""

    def __init__(self) -> None:
        self._drivers: set[SocketDriver] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._drivers)

    def add(self, driver: SocketDriver) -> None:
        """Register a driver; in the event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a process has one loop; only tests run several, one after the other
            self._loop, self._drivers, self._is_stopping = loop, set(), False
            on_shutdown(self.stop)
        self._drivers.add(driver)
        if self._is_stopping:
            driver.stop()

    def discard(self, driver: SocketDriver) -> None:
        """Remove a driver that has ended."""
        self._drivers.discard(driver)

    def stop(self) -> None:
        """End all sessions. Each one sends its Close frame before the server closes the connection."""
        self._is_stopping = True
        for driver in list(self._drivers):
            driver.stop()


open_sockets = OpenSockets()
