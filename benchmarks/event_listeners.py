"""Keeps many event streams open, in a process of its own: `python -m benchmarks.event_listeners`.

The listeners share the machine with the server, so they do as little as possible: no HTTP client, no parser of JSON.
The delay of an event is the time from the timestamp in its envelope, which the database takes before the commit, to its
arrival at a listener. It is therefore a little longer than that from the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import uvloop

from benchmarks.histogram import spread
from config.paths import BASE_DIR

EVENTS_PATH = "/api/dashboard/events"
CONNECTING = 40  # listeners that wait for the first event: the server refuses requests beyond its queue
OPEN_WITHIN = 90.0
END_OF_FRAME, DATA, TIMESTAMP = b"\n\n", b"data: ", b'"timestamp":"'
GAP, SNAPSHOT = b"event: gap\n", b"event: snapshot\n"


@dataclass(frozen=True)
class ListenPlan:
    """The streams.

    Attributes:
        host: The address of the server.
        port: Its port.
        streams: The path and the token of each.
        counts_only: Delays are not measured, which takes less time.
    """

    host: str
    port: int
    streams: Sequence[tuple[str, str]]
    counts_only: bool = False


class Listeners:
    """The process of the listeners, all of which have received their first event."""

    def __init__(self, plan: ListenPlan) -> None:
        from benchmarks import waiting  # noqa: PLC0415 - loads Django, which the process of the listeners does not need

        waiting.allow_sockets(len(plan.streams) + 200)
        command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "benchmarks.event_listeners"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=BASE_DIR, stdin=pipe, stdout=pipe, text=True)
        try:
            self._ask(asdict(plan))
        except BaseException:
            self.stop()
            raise

    def report(self, events: int = 0, *, within: float = 10.0) -> dict[str, Any]:
        """Return what arrived since the last report.

        Args:
            events: The number of events, over all listeners, for which to wait.
            within: Seconds to wait for them.

        Returns:
            `events`, `parts` in which they arrived, `gaps`, `ended` (streams that have ended), and the spread of the
            delays as `delay_ms`.
        """
        return self._ask({"events": events, "within": within})

    def stop(self) -> None:
        """End all streams."""
        self.process.kill()
        self.process.wait()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "the listeners ended"}
        if "error" in found:
            raise RuntimeError(found["error"])
        return found


@contextlib.contextmanager
def listening(plan: ListenPlan) -> Iterator[Listeners]:
    """Keep the streams open during the block."""
    listeners = Listeners(plan)
    try:
        yield listeners
    finally:
        listeners.stop()


class Received:
    """Counts the events of all listeners, and keeps their delays."""

    def __init__(self, *, counts_only: bool) -> None:
        self.counts_only = counts_only
        self.clear()
        self.ended: list[str] = []
        self._wanted, self._enough = 0, asyncio.Event()

    def clear(self) -> None:
        self.events = self.gaps = self.parts = 0
        self.delays: list[float] = []

    def add(self, frame: bytes, at: float) -> None:
        """Add a frame that arrived at a time (of the system's clock). It may begin with the framing of its chunk."""
        if GAP in frame or SNAPSHOT in frame:
            self.gaps += GAP in frame
            return
        self.events += 1
        if self.events == self._wanted:
            self._enough.set()
        if self.counts_only:
            return
        begins = frame.index(TIMESTAMP) + len(TIMESTAMP)
        stamp = frame[begins : frame.index(b'"', begins)]
        self.delays.append(at - datetime.fromisoformat(stamp.decode()).timestamp())

    async def wait_for(self, events: int, seconds: float) -> None:
        """Wait until so many events have arrived, or for so long."""
        self._wanted = events
        self._enough.clear()
        if self.events < events:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._enough.wait(), seconds)

    def report(self) -> dict[str, Any]:
        found = {"events": self.events, "parts": self.parts, "gaps": self.gaps, "ended": len(self.ended)}
        return found | {"delay_ms": spread(self.delays)} if self.delays else found


class EventListener(asyncio.Protocol):
    """Receives one stream."""

    def __init__(self, host: str, path: str, token: str, received: Received) -> None:
        lines = (f"GET {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {token}", "Accept: text/event-stream")
        self._request = ("\r\n".join(lines) + "\r\n\r\n").encode()
        self._received, self._rest = received, b""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        at = time.time()
        self._received.parts += 1
        *frames, self._rest = (self._rest + data).split(END_OF_FRAME)
        for frame in frames:
            if DATA in frame:
                if not self.begun.done():
                    self.begun.set_result(None)
                self._received.add(frame, at)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = str(exc or self._rest[:300])
        self._received.ended.append(reason)
        if not self.begun.done():
            self.begun.set_exception(ConnectionError(f"a stream ended before its first event: {reason}"))


async def _listen(plan: ListenPlan, received: Received) -> None:
    """Open all streams. Returns when each has its first event."""
    places = asyncio.Semaphore(CONNECTING)

    async def begin(path: str, token: str) -> None:
        async with places:
            _, listener = await asyncio.get_running_loop().create_connection(
                lambda: EventListener(f"{plan.host}:{plan.port}", path, token, received), plan.host, plan.port
            )
            await listener.begun

    async with asyncio.timeout(OPEN_WITHIN):
        await asyncio.gather(*(begin(path, token) for path, token in plan.streams))


async def _serve() -> None:
    """Open the streams of the first line, and answer each further line with a report."""
    lines = asyncio.StreamReader(limit=1 << 22)  # a plan has a line with all tokens
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    plan = ListenPlan(**json.loads(await lines.readline()))
    received = Received(counts_only=plan.counts_only)
    try:
        await _listen(plan, received)
    except (OSError, TimeoutError) as error:
        _answer({"error": f"{type(error).__name__}: {error}"[:500]})
        return
    _answer({"streams": len(plan.streams)})
    while line := await lines.readline():
        asked = json.loads(line)
        await received.wait_for(asked["events"], asked["within"])
        _answer(received.report())
        received.clear()


def _answer(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_serve())
