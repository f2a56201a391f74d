"""A network that loses and repeats: between the callers and the servers, one request a connection.

Each connection goes to a server at random, or to another one if that accepts none, as a load balancer does. It knows as
much of HTTP as it needs to find the end of a request. A WebSocket passes as bytes. Its connection is cut after some
time, or carries nothing for a while and is cut then.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

from tests.loopback_listener import LoopbackListener

BODY_BYTES = 4 << 20
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CONNECTION = re.compile(rb"\r\nconnection: [^\r]*", re.IGNORECASE)
UPGRADE = re.compile(rb"\r\nupgrade: *websocket", re.IGNORECASE)
# What may happen to a request, and how often; otherwise it passes.
FATES = {"request lost": 0.01, "answer lost": 0.03, "sent twice": 0.03, "delayed": 0.03}
LONGEST_DELAY = 1.5
CUT_SECONDS = 15.0  # mean duration of the connection of a WebSocket
STALLED, STALLED_SECONDS = 0.3, (2.0, 15.0)  # share of those that carry nothing before their end, and for how long
TWICE_SECONDS = 10.0  # for which the second of two waits for a response that no client reads


class Proxy(LoopbackListener):
    """`url` leads to `servers` (host, port). `faithful`: from now on everything passes.

    Attributes:
        happened: What became of requests and channels.
        connections: The connections to each server.
    """

    def __init__(self, servers: Sequence[tuple[str, int]], seed: int) -> None:
        super().__init__()
        self._servers = servers
        self._chance = Random(f"{seed}/network")
        self.faithful = False
        self.happened: Counter[str] = Counter()
        self.connections = [0] * len(servers)

    async def accept(self, caller: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await caller.readuntil(b"\r\n\r\n")
            if UPGRADE.search(head):
                await self._tunnel(head, caller, answer)
            else:
                request = await _request(head, caller)
                fate = self._fate()
                self.happened[fate] += 1
                await self._pass_on(fate, request, caller, answer)
        answer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to one of the servers that accept a connection. Raises OSError if none does."""
        for number in self._chance.sample(range(len(self._servers)), len(self._servers)):
            with contextlib.suppress(ConnectionRefusedError):
                ends = await asyncio.open_connection(*self._servers[number])
                self.connections[number] += 1
                return ends
        raise ConnectionRefusedError

    async def _tunnel(self, head: bytes, caller: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        """Connect both ends until one of them closes, or until the network cuts them."""
        server, sent = await self._connect()
        sent.write(head)
        pumps = {asyncio.create_task(_pump(caller, sent)), asyncio.create_task(_pump(server, answer))}
        try:
            await asyncio.wait(
                pumps,
                timeout=None if self.faithful else self._chance.expovariate(1 / CUT_SECONDS),
                return_when=asyncio.FIRST_COMPLETED,
            )
            is_open = not any(pump.done() for pump in pumps)
            if is_open and self.faithful:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            elif is_open:
                await self._cut(pumps)
                answer.transport.abort()
                sent.transport.abort()
        finally:
            for pump in pumps:
                pump.cancel()
            sent.close()

    async def _cut(self, pumps: set[asyncio.Task[None]]) -> None:
        """Carry nothing any more, for a while if the connection stalls first."""
        for pump in pumps:
            pump.cancel()
        is_stalled = self._chance.random() < STALLED
        self.happened["channel stalled" if is_stalled else "channel cut"] += 1
        if is_stalled:
            await asyncio.sleep(self._chance.uniform(*STALLED_SECONDS))

    def _fate(self) -> str:
        drawn = self._chance.random()
        for fate, share in FATES.items():
            if self.faithful:
                break
            if drawn < share:
                return fate
            drawn -= share
        return "passed"

    async def _pass_on(
        self, fate: str, request: bytes, caller: asyncio.StreamReader, answer: asyncio.StreamWriter
    ) -> None:
        if fate == "request lost":
            return
        if fate == "delayed":
            await asyncio.sleep(self._chance.uniform(0, LONGEST_DELAY))
        gone = asyncio.ensure_future(caller.read())  # a caller that hangs up hangs up on the server
        asked = [self._ask(request, None if fate == "answer lost" else answer, gone)]
        if fate == "sent twice":
            asked.append(self._ask(request, None, asyncio.ensure_future(asyncio.sleep(TWICE_SECONDS))))
        try:
            await asyncio.gather(*asked)
        finally:
            gone.cancel()

    async def _ask(
        self, request: bytes, answer: asyncio.StreamWriter | None, gone: asyncio.Future[bytes] | asyncio.Future[None]
    ) -> None:
        """Send it over a connection of its own and bring the answer back, unless it is to be lost."""
        server, sent = await self._connect()
        try:
            sent.write(request)
            while piece := await _unless(gone, server.read(1 << 16)):
                if answer is not None:
                    answer.write(piece)
                    await answer.drain()
        finally:
            sent.close()


async def _unless(gone: asyncio.Future[Any], coming: Coroutine[Any, Any, bytes]) -> bytes:
    """Return what arrives, or nothing after the client has disconnected."""
    piece = asyncio.ensure_future(coming)
    await asyncio.wait({piece, gone}, return_when=asyncio.FIRST_COMPLETED)
    if piece.done():
        return piece.result()
    piece.cancel()
    return b""


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Forward bytes until either end closes."""
    with contextlib.suppress(OSError):
        while piece := await source.read(1 << 16):
            target.write(piece)
            await target.drain()


async def _request(head: bytes, caller: asyncio.StreamReader) -> bytes:
    """One request, which asks the server to end the connection after its answer."""
    length = LENGTH.search(head)
    body = await caller.readexactly(min(int(length[1]), BODY_BYTES)) if length else b""
    return CONNECTION.sub(b"", head)[:-2] + b"Connection: close\r\n\r\n" + body
