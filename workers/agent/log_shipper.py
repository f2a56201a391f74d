"""Sends the output of a job to the server while it runs: its head, and in the end its tail.

The command never waits, and the server may be slow: a job with more output loses its middle, and the log says how much.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from workers.agent.errors import LeaseRejected, RequestRefused, ServerConflict, ServerUnreachable, TransientRefusal
from workers.agent.retry import Backoff
from workers.agent.sanitize import counted

logger = logging.getLogger(__name__)

CHUNK_BYTES = 512 << 10
PIECE_BYTES = 64 << 10  # of the tail that is dropped at once, and in which its first line may begin
PERIOD_SECONDS = 0.5
MAX_CONFLICTS = 5

Send = Callable[[int, bytes], None]


class Buffer:
    """A queue of bytes. Safe between two threads. `LogTrimmer` limits what a job writes into its buffers."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._lock:
            self._bytes += data

    def take(self, limit: int) -> bytes:
        """Remove and return the next bytes, b"" if there are none."""
        with self._lock:
            taken = bytes(self._bytes[:limit])
            del self._bytes[:limit]
            return taken


class Log(Protocol):
    """The log of one step."""

    def write(self, data: bytes) -> None: ...


class LogTrimmer:
    """Keeps the head and the tail of what a job prints, in all its steps, and says how much it dropped between them.

    The head is passed on at once, the tail when the last step has ended. Both consist of whole lines where lines are
    shorter than the limits. Each log that lost something has one marker, at the place of the gap.
    """

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_left, self._tail_bytes = head_bytes, tail_bytes
        self.is_full = False  # of the head
        self._is_flushed = False
        self._tail: deque[tuple[Log, bytearray]] = deque()
        self._size = 0
        self._dropped: dict[Log, tuple[int, int]] = {}  # bytes and lines
        self._is_in_line = False  # the last byte that was dropped did not end its line
        self._lock = threading.Lock()

    @property
    def facts(self) -> dict[str, dict[str, int]]:
        """The member of the job's result that says what was dropped; empty if nothing was."""
        lost = self._dropped.values()
        if not lost:
            return {}
        return {"log_truncated": {"bytes": sum(one[0] for one in lost), "lines": sum(one[1] for one in lost)}}

    def write(self, log: Log, data: bytes) -> None:
        """Take output of a step; never waits."""
        with self._lock:
            if self._is_flushed:
                log.write(data)
                return
            head = b"" if self.is_full else self._head_of(data)
            if head:
                log.write(head)
            if len(head) < len(data):
                self._keep(log, data[len(head) :])

    def flush(self) -> None:
        """Write the tail. What follows is not output of the job, and is passed on."""
        with self._lock:
            if self._is_flushed:
                return
            if self._is_in_line and self._tail:  # without its beginning the rest of the line is of no use
                self._drop(self._tail[0][1].find(b"\n", 0, PIECE_BYTES) + 1)
            for log, (lost_bytes, lost_lines) in self._dropped.items():
                lost = f"{counted(lost_bytes, 'byte')} in {counted(lost_lines, 'line')}"
                log.write(f"\n[{lost} dropped here]\n".encode())
            for log, piece in self._tail:
                log.write(bytes(piece))
            self._tail.clear()
            self._is_flushed = True

    def _head_of(self, data: bytes) -> bytes:
        if len(data) <= self._head_left:
            self._head_left -= len(data)
            return data
        self.is_full = True
        fits = data[: self._head_left]
        return fits[: fits.rfind(b"\n") + 1] or fits

    def _keep(self, log: Log, data: bytes) -> None:
        if self._tail and self._tail[-1][0] is log and len(self._tail[-1][1]) < PIECE_BYTES:
            self._tail[-1][1].extend(data)  # a job may print byte by byte
        else:
            self._tail.append((log, bytearray(data)))
        self._size += len(data)
        while self._size > self._tail_bytes:
            self._drop(min(self._size - self._tail_bytes, len(self._tail[0][1])))

    def _drop(self, count: int) -> None:
        """Drop so many bytes of the oldest piece."""
        if not count:
            return
        log, piece = self._tail[0]
        lost_bytes, lost_lines = self._dropped.get(log, (0, 0))
        self._dropped[log] = lost_bytes + count, lost_lines + piece.count(b"\n", 0, count)
        self._size -= count
        self._is_in_line = piece[count - 1] != ord("\n")
        del piece[:count]
        if not piece:
            self._tail.popleft()


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
