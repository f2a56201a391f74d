"""Sends the output of a command to the server while it runs.

The command never waits: output that cannot be sent in time is dropped, and the log says how much.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from workers.agent.errors import LeaseRejected, RequestRefused, ServerConflict, ServerUnreachable, TransientRefusal
from workers.agent.retry import Backoff
from workers.agent.sanitize import counted

logger = logging.getLogger(__name__)

CHUNK_BYTES = 512 << 10
BUFFER_BYTES = 8 << 20
PERIOD_SECONDS = 0.5
MAX_CONFLICTS = 5

Send = Callable[[int, bytes], None]


class Buffer:
    """A queue of bytes with a limit, and a marker where some were dropped. Safe between two threads."""

    def __init__(self, room: int = BUFFER_BYTES) -> None:
        self._room = room
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._lock:
            fits = data[: max(self._room - self._size, 0)] if not self._dropped else b""
            if fits:
                self._pieces.append(fits)
                self._size += len(fits)
            self._dropped += len(data) - len(fits)

    def take(self, limit: int) -> bytes:
        """Remove and return the next bytes, b"" if there are none."""
        with self._lock:
            if not self._pieces:
                return self._marker()
            taken = bytearray()
            while self._pieces and len(taken) < limit:
                piece = self._pieces.popleft()
                room = limit - len(taken)
                taken += piece[:room]
                if len(piece) > room:
                    self._pieces.appendleft(piece[room:])
            self._size -= len(taken)
            return bytes(taken)

    def _marker(self) -> bytes:
        # All bytes before the gap have been sent, so the marker goes here.
        dropped, self._dropped = self._dropped, 0
        return f"\n[{counted(dropped, 'byte')} of output dropped here]\n".encode() if dropped else b""


class LogShipper:
    """Sends the output of one step in order, in chunks numbered from 0, from a thread of its own.

    `on_stale` is called when the server rejects the lease. `predecessor` is the shipper of the step before, whose
    output is sent first, so that followers of the log miss nothing.
    """

    def __init__(
        self,
        send: Send,
        on_stale: Callable[[LeaseRejected], None],
        *,
        period: float = PERIOD_SECONDS,
        predecessor: LogShipper | None = None,
    ) -> None:
        self._send = send
        self._on_stale = on_stale
        self._period = period
        self._predecessor = predecessor
        self._buffer = Buffer()
        self._seq = 0
        self._conflicts = 0
        self._backoff = Backoff(first=0.5, max_seconds=10)
        self._closing = threading.Event()
        self._abandoned = threading.Event()  # nothing more is sent
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Take output; never waits."""
        if not self._abandoned.is_set():
            self._buffer.write(data)

    def finish(self) -> None:
        """Mark the end of the output; the rest is sent, until `close` sets a deadline."""
        self._closing.set()

    def close(self, *, within: float) -> None:
        """Send the rest, and that of the steps before, within so many seconds; 0: send nothing more."""
        self._give_up_at = time.monotonic() + within
        if self._predecessor is not None:
            self._predecessor.close(within=within)
            within = max(self._give_up_at - time.monotonic(), 0.0)
        if within <= 0:
            self._abandoned.set()
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(within + 1)

    def _run(self) -> None:
        if self._predecessor is not None:
            self._predecessor._thread.join()  # noqa: SLF001 another of its own kind
        while not self._abandoned.is_set():
            chunk = self._buffer.take(CHUNK_BYTES)
            if chunk:
                self._deliver(chunk)
            elif self._closing.is_set():
                return
            if len(chunk) < CHUNK_BYTES:  # a full one means that there is more
                self._closing.wait(self._period)

    def _deliver(self, chunk: bytes) -> None:
        """Send this chunk until the server has it, or will never take it."""
        while not self._abandoned.is_set():
            try:
                self._send(self._seq, chunk)
            except (ServerUnreachable, TransientRefusal) as error:
                self._wait(self._backoff.next(error.retry_after))
            except ServerConflict as conflict:
                if self._is_stored(conflict):
                    return
            except LeaseRejected as stale:
                self._abandoned.set()
                self._on_stale(stale)
            except RequestRefused as refusal:
                logger.warning("log chunk refused: the rest is dropped error=%r", str(refusal))
                self._abandoned.set()
            else:
                self._seq += 1
                self._conflicts = 0
                self._backoff.reset()
                return

    def _is_stored(self, conflict: ServerConflict) -> bool:
        """Follow the server's count. Returns whether it has this chunk already and its response was lost."""
        self._conflicts += 1
        if self._conflicts > MAX_CONFLICTS:
            logger.warning("log chunk numbers conflict: the rest is dropped error=%r", str(conflict))
            self._abandoned.set()
            return True
        expected = conflict.facts.get("expected_seq")
        if conflict.code == "chunk_gap" and isinstance(expected, int) and expected >= 0:
            is_stored, self._seq = expected > self._seq, expected
            return is_stored
        self._seq += 1  # the number is in use: the bytes get the next
        return False

    def _wait(self, seconds: float) -> None:
        left = self._give_up_at - time.monotonic()
        if left <= 0:
            self._abandoned.set()
        elif self._closing.is_set():
            self._abandoned.wait(min(seconds, left))
        else:
            self._closing.wait(seconds)
