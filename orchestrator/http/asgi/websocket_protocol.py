"""uvicorn's WebSocket protocol with the limits that uvicorn lacks."""

import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from orchestrator.http.asgi.connections import REFUSED

MAX_FRAGMENTS = 1024  # of one message
MAX_UNSENT_BYTES = 1 << 20  # answers to control frames that the client does not read

# uvicorn logs each handshake at INFO, with its path. The access log has a line for it already.
_log = logging.getLogger("orchestrator.websockets")
_log.setLevel(logging.WARNING)


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Limits what uvicorn does not: invalid handshakes, fragments of a message, unread replies to control frames."""

    on_lost: Callable[[], None] = staticmethod(lambda: None)  # removes the connection of the handshake from the table

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_lost()
        super().connection_lost(exc)

    def connection_made(self, transport: Any) -> None:
        self.logger = self.conn.logger = _log
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

    def _refuse_handshake(self) -> None:
        """Answer a request that `websockets` cannot parse, such as one with a line above its own limit.

        uvicorn sends nothing in that case, and keeps the connection open.
        """
        REFUSED.labels("websocket_handshake").inc()
        response = b"".join(self.conn.data_to_send())
        self.handshake_complete = True
        self.transport.write(response or STATUS_LINE[400] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
