"""uvicorn's WebSocket protocol with the limits that uvicorn lacks."""

import logging
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.protocol import Protocol
from websockets.streams import StreamReader

from orchestrator.http.asgi.connections import REFUSED

MAX_FRAGMENTS = 1024  # of one message
MAX_CONTROL_BYTES = 125  # of a control frame; a header is smaller
MAX_UNSENT_BYTES = 1 << 20  # answers to control frames that the client does not read
GOING_AWAY = 1001  # code of a Close frame
SHUTDOWN_REASON = "server shutting down"
EXTENSION = "orchestrator.websocket"  # in the extensions of the scope: a WebSocketConnection

# uvicorn logs each handshake at INFO, with its path. The access log has a line for it already.
_log = logging.getLogger("orchestrator.websockets")
_log.setLevel(logging.WARNING)


class CutText(str):
    """The beginning of a text message that is larger than the application accepts.

    Attributes:
        size: Bytes of the whole message.
        limit: Bytes that the application accepts.
    """

    __slots__ = ("limit", "size")

    size: int
    limit: int


class CuttingReader(StreamReader):
    """Reads a message up to a limit and skips the rest of it, so that the connection stays usable.

    Attributes:
        limit: Bytes of a message; None while messages are limited by `websockets`, which ends the connection.
        skipped: Bytes that were skipped of the present message.
    """

    limit: int | None = None
    skipped = 0

    def __init__(self, connection: Protocol) -> None:
        super().__init__()
        self._connection = connection

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        if self.limit is None or n <= MAX_CONTROL_BYTES:
            return (yield from super().read_exact(n))
        left = n - min(n, max(0, self.limit - (self._connection.current_size or 0)))
        data = yield from super().read_exact(n - left)
        self.skipped += left
        while left:
            if not self.buffer:
                if self.eof:
                    raise EOFError("The stream ends within a message.")
                yield
            taken = min(left, len(self.buffer))
            del self.buffer[:taken]
            left -= taken
        return data


class WebSocketConnection:
    """The connection of a WebSocket, for an application that needs more than ASGI offers."""

    def __init__(self, protocol: "LimitedWebSocketProtocol") -> None:
        self._protocol = protocol

    @property
    def control_at(self) -> float:
        """Time of the last ping or pong, in seconds on the monotonic clock; 0 before the first one."""
        return self._protocol.control_at

    def limit_messages(self, max_bytes: int) -> None:
        """Limit the messages of the client from now on. A larger one ends the connection with code 1009."""
        self._protocol.conn.max_message_size = max_bytes

    def cut_messages(self, max_bytes: int) -> None:
        """Cut the messages of the client from now on. The application receives the beginning of one as `CutText`."""
        self._protocol.conn.max_message_size = None
        self._protocol.reader.limit = max_bytes

    def drop(self) -> None:
        """Close the connection without sending what is buffered."""
        self._protocol.transport.abort()


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Limits what uvicorn does not: invalid handshakes, fragments of a message, unread replies to control frames.

    An application may ask for the beginning of a message that is too large, instead of the end of the connection.
    """

    reader: CuttingReader
    on_lost: Callable[[], None] = staticmethod(lambda: None)  # removes the connection of the handshake from the table
    control_at = 0.0

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:  # else it was refused, and there is no scope
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[EXTENSION] = WebSocketConnection(self)

    def handle_ping(self) -> None:
        self.control_at = time.monotonic()
        super().handle_ping()

    def handle_pong(self, event: Any) -> None:
        self.control_at = time.monotonic()
        super().handle_pong(event)

    def shutdown(self) -> None:
        """Send Close 1001 to a client whose session has not done so yet. uvicorn sends 1012."""
        if self.handshake_complete and not self.close_sent:
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY})
            with suppress(InvalidState):  # the client has closed the connection meanwhile
                self.conn.send_close(GOING_AWAY, SHUTDOWN_REASON)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_lost()
        super().connection_lost(exc)

    def connection_made(self, transport: Any) -> None:
        self.logger = self.conn.logger = _log
        self.conn.reader = self.reader = CuttingReader(self.conn)
        self.conn.parser = self.conn.parse()  # the first one has the reader of `websockets`
        next(self.conn.parser)
        super().connection_made(transport)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # uvicorn does not record it, and logs an error for each refused handshake

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_handshake()
        elif len(self.frames) > MAX_FRAGMENTS or self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            REFUSED.labels("websocket_frames").inc()
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        skipped, self.reader.skipped = self.reader.skipped, 0
        if not skipped or self.reader.limit is None or self.close_sent or self.curr_msg_data_type != "text":
            super().send_receive_event_to_app()
            return
        data, self.frames = b"".join(self.frames), []
        text = CutText(data.decode(errors="ignore"))  # the limit may be within a character
        text.size, text.limit = len(data) + skipped, self.reader.limit
        self.queue.put_nowait({"type": "websocket.receive", "text": text})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _refuse_handshake(self) -> None:
        """Answer a request that `websockets` cannot parse, such as one with a line above its own limit.

        uvicorn sends nothing in that case, and keeps the connection open.
        """
        REFUSED.labels("websocket_handshake").inc()
        response = b"".join(self.conn.data_to_send())
        self.handshake_complete = True
        self.transport.write(response or STATUS_LINE[400] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
