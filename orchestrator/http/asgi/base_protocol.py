"""uvicorn's HTTP connection with bounds on what waits to be sent, and a way for the application to drop it."""

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION = "orchestrator.connection"  # in the extensions of the scope
WRITE_BUFFER_BYTES = 64 << 10  # above it `send` waits; one message more may be in the buffer
UNSENT_BYTES = 128 << 10  # in the kernel, which otherwise takes up to 4 MiB for a client that reads nothing
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class ClientConnection:
    """The connection of a request."""

    transport: asyncio.Transport

    def drop(self) -> None:
        """Close at once, whatever waits to be sent. `close` of a transport would wait for a client that does not read.
        The reset makes the kernel free what it holds for the client."""
        _set_option(self.transport, socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()


class DroppableHttpProtocol(HttpToolsProtocol):
    """The base of the server's HTTP protocol: bounds the unsent bytes and names the connection in the scope."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        _set_option(transport, socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        # An answer that does not stream is handed over whole, and no `send` waits for its client: for that one the
        # kernel counts. Twice as long, so that a stream is cut off by the application, which knows why.
        stall = int(2000 * settings.STREAM_STALL_SECONDS)
        _set_option(transport, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, Any] = {EXTENSION: ClientConnection(self.transport)}
        self.scope["extensions"] = extensions


def _set_option(transport: asyncio.Transport, level: int, option: int, value: int | bytes) -> None:
    """Set it on a TCP connection; a Unix socket has none of these."""
    found = transport.get_extra_info("socket")
    if found is not None and found.family in {socket.AF_INET, socket.AF_INET6}:
        found.setsockopt(level, option, value)
