"""A proxy between runners and the server that records the calls of runners without tokens. It changes no byte.

A call is a JSON object: `runner` (its number by its registration token), `path` (ids are replaced by numbers), `headers`
without those of the connection, `body` as text, and `status`. Requests of git and of steps pass unrecorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.loopback_listener import LoopbackListener

API = "/api/v1/"
HEARTBEAT = f"{API}runners/heartbeat"
OF_THE_CONNECTION = {"host", "content-length", "connection"}
_TOKEN = re.compile(r"Bearer ([0-9a-f]{64})")

Call = dict[str, Any]


@dataclass
class Message:
    """A request or a response: its first line, its headers and its body as sent."""

    line: str
    headers: dict[str, str] = field(default_factory=dict)
    head: bytes = b""

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers.items() if key.lower() == name), "")


class Calls:
    """The recorded calls. Threads may wait for one."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._changed = threading.Condition()
        self._runners: dict[str, int] = {}

    @property
    def all(self) -> list[Call]:
        with self._changed:
            return list(self._calls)

    def add(self, request: Message, body: bytes, status: int) -> None:
        _, path, _ = request.line.split(" ", 2)
        bearer = request.header("authorization")
        with self._changed:
            if found := _TOKEN.fullmatch(bearer):
                self._runners.setdefault(found[1], len(self._runners) + 1)
            headers = {name: value for name, value in request.headers.items() if name.lower() not in OF_THE_CONNECTION}
            kind = "registration" if found else "job"
            headers = {
                name: f"Bearer {kind}" if name.lower() == "authorization" else value for name, value in headers.items()
            }
            self._calls.append({"path": path, "headers": headers, "body": body.decode(), "status": status})
            self._changed.notify_all()

    def wait_for(self, what: str, condition: Callable[[list[Call]], Any], seconds: float = 90.0) -> Any:
        """Return the value of the condition as soon as it is true.

        Args:
            what: A description for the AssertionError after the wait.
            condition: A function of all calls.
            seconds: The longest wait.
        """
        with self._changed:
            found = self._changed.wait_for(lambda: condition(self._calls), seconds)
        assert found, f"within {seconds:.0f} s there was no {what}: {json.dumps(self._calls[-8:], indent=1)}"
        return found


class RecordingProxy(LoopbackListener):
    """Passes requests on to the server, which may be replaced. `calls` gets those that begin from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()
        self._server: tuple[str, int] | None = None
        self._under_way = 0
        self._idle = threading.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def connect_to(self, server: tuple[str, int]) -> None:
        """Send the next requests to this server."""
        with self._idle:
            self._server = server

    def refuse(self, seconds: float = 60.0) -> None:
        """Refuse every request from now on, and return when no one is under way."""
        with self._idle:
            self._server = None
        self.wait_until_idle(seconds)

    def wait_until_idle(self, seconds: float = 60.0) -> None:
        """Return when no request is under way, so that each one whose effect was seen is recorded."""
        with self._idle:
            assert self._idle.wait_for(lambda: self._under_way == 0, seconds), "a request does not end"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError, ValueError)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)  # the event loop itself keeps weak references only
        try:
            with contextlib.suppress(*ends):
                await self._pass_on(reader, writer)
        finally:
            await _close(writer)
            self._tasks.discard(task)

    async def _pass_on(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Pass the requests of one connection on, one after the other."""
        lines: dict[tuple[str, int], tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        try:
            while True:
                request = await _read_head(client)
                body = await _read_body(client, request)
                with self._idle:
                    target, calls = self._server, self.calls
                    if target is None:
                        return
                    self._under_way += 1
                try:
                    if target not in lines:
                        lines[target] = await asyncio.open_connection(*target, limit=1 << 20)
                    server, to_server = lines[target]
                    to_server.write(request.head + body)
                    await to_server.drain()
                    response = await _read_head(server)
                    status = int(response.line.split(" ", 2)[1])
                    answer = await _read_body(server, response, has_none=status in (204, 304))
                    if request.line.split(" ", 2)[1].startswith(API):
                        calls.add(request, body, status)
                    to_client.write(response.head + answer)
                    await to_client.drain()
                finally:
                    with self._idle:
                        self._under_way -= 1
                        self._idle.notify_all()
                if response.header("connection").lower() == "close":
                    return
        finally:
            for _, to_server in lines.values():
                await _close(to_server)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()


async def _read_head(reader: asyncio.StreamReader) -> Message:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    return Message(line, dict(part.split(": ", 1) if ": " in part else (part.rstrip(":"), "") for part in rest), head)


async def _read_body(reader: asyncio.StreamReader, message: Message, *, has_none: bool = False) -> bytes:
    """Return the body with its framing."""
    if has_none:
        return b""
    if "chunked" not in message.header("transfer-encoding").lower():
        return await reader.readexactly(int(message.header("content-length") or 0))
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        body += line + await reader.readexactly(int(line, 16) + 2)
        if int(line, 16) == 0:
            return body
