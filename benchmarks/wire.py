"""Sends HTTP over one kept connection with as little work as possible: clients share the server's machine.

Used against the product and the peers alike.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Gone(Exception):
    """The server ended the connection, or there is none; the request may have happened or not."""


class Connection:
    """One at a time. `post` connects when it has to."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: Any, *, token: str = "", key: str = "") -> tuple[int, Any]:
        """Return the status and the parsed body, None if there is none.

        Raises:
            Gone: The server has ended the connection, or there is none.
        """
        return await self._exchange(self._request(path, body, token, key))

    async def get(self, path: str, *, token: str = "") -> tuple[int, Any]:
        """Return the status and the parsed body, as `post` does."""
        head = f"GET {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
        head += f"Authorization: Bearer {token}\r\n" if token else ""
        return await self._exchange(f"{head}\r\n".encode())

    async def _exchange(self, request: bytes) -> tuple[int, Any]:
        try:
            return await self._send(request)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise Gone(str(error)) from error

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    def _request(self, path: str, body: Any, token: str, key: str) -> bytes:
        content = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {token}\r\n" if token else ""
        head += f"Idempotency-Key: {key}\r\n" if key else ""
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content

    async def _send(self, request: bytes) -> tuple[int, Any]:
        if self._reader is None or self._writer is None or self._reader.at_eof():  # idle for too long
            self._reader, self._writer = await asyncio.open_connection(self.host, self.port, limit=1 << 22)
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        content = await self._content(self._reader, head)
        if b"\r\nconnection: close" in head:
            self.close()
        return int(head[9:12]), json.loads(content) if content else None

    async def _content(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        if b"\r\ntransfer-encoding: chunked" in head:
            return await _chunks(reader)
        _, found, after = head.partition(b"\r\ncontent-length:")
        return await reader.readexactly(int(after.split(b"\r\n", 1)[0])) if found else b""


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    content = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        content += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return content
