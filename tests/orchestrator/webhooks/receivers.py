"""Receivers of webhooks on this machine, each with the answer that a test needs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

LOOPBACK = "127.0.0.0/8"


@dataclass
class Received:
    """A request: its line, its headers with lower-case names, and its body."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedReceiver:
    """A server that records requests. `answers` has the raw bytes for each request; the last one is repeated.

    An answer may also be a function, which gets the stream and writes what it likes.
    """

    answers: list[bytes | Callable[[asyncio.StreamWriter], Any]]
    ssl_context: Any = None
    host: str = "127.0.0.1"
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    open: dict[Any, asyncio.StreamWriter] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http{'s' if self.ssl_context else ''}://{self.host}:{self.port}/hook?a=b"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open[asyncio.current_task()] = writer
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(Received(line, headers, body))
                answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
                if callable(answer):
                    await answer(writer)
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def end(self) -> None:
        """End all connections, and the functions that still answer on them."""
        for task, writer in self.open.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close their sockets in the next round of the loop


@contextlib.asynccontextmanager
async def receiving(*answers: Any, ssl_context: Any = None, host: str = "127.0.0.1") -> AsyncIterator[ScriptedReceiver]:
    """Run a receiver."""
    receiver = ScriptedReceiver(list(answers), ssl_context, host)
    server = await asyncio.start_server(receiver.serve, host, 0, ssl=ssl_context)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.end()


def answer(status: int = 200, body: bytes = b"ok", **headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
