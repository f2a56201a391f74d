"""Sends JSON over a WebSocket with as little work as possible: clients share the server's machine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from benchmarks.wire import Gone

_TEXT, _CLOSE = 0x1, 0x8
_FINAL, _MASKED = 0x80, 0x80
_NO_MASK = b"\0\0\0\0"  # a mask of zeros leaves the bytes as they are


class ChannelConnection:
    """One connection of a runner. Frames of the server have one fragment each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def opened(cls, host: str, port: int, path: str, key: str) -> ChannelConnection:
        """Connect and upgrade. Raises Gone if the server refuses."""
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 16)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            f"Authorization: Bearer {key}\r\n\r\n".encode()
        )
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone("no response to the handshake") from error
        if not head.startswith(b"HTTP/1.1 101"):
            writer.close()
            raise Gone(head.split(b"\r\n", 1)[0].decode())
        return cls(reader, writer)

    def send(self, event: str, **members: Any) -> None:
        """Send a message."""
        content = json.dumps({"event": event, **members}, separators=(",", ":")).encode()
        size = len(content)
        length = bytes([_MASKED | size]) if size < 126 else bytes([_MASKED | 126]) + size.to_bytes(2)
        self._writer.write(bytes([_FINAL | _TEXT]) + length + _NO_MASK + content)

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            Gone: The server has closed the connection.
        """
        try:
            while True:
                first, second = await self._reader.readexactly(2)
                size = second & 0x7F
                if size >= 126:
                    size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
                content = await self._reader.readexactly(size)
                if first & 0xF == _TEXT:
                    message: dict[str, Any] = json.loads(content)
                    return message
                if first & 0xF == _CLOSE:
                    raise Gone(content[2:].decode())
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone(str(error)) from error

    async def ask(self, event: str, **members: Any) -> dict[str, Any]:
        """Send a message and return the reply."""
        self.send(event, **members)
        return await self.receive()

    def close(self) -> None:
        """End the connection without a Close frame."""
        self._writer.close()
