"""Reads the traces of a slot in a process of its own, so that slots use several cores and the worker's interpreter one.

    readers = TraceReaders()
    with readers.reading(slot, engine.mount_points(spec), expected=()) as reader:
        result = engine.run(spec, trace=reader.feed, ...)
        body, counts = reader.payload(metadata=metadata, result=result, spec=spec)

The process of a slot holds one `RunReport` at a time. It takes the next run of the slot when it has answered for the
one before; else it is killed, and the next run has a new one. It ends with its connection, so that none outlives the
worker.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workers.engines.contract import MountPoints, RunResult, RunSpec
from workers.report.report import RunReport, encoded

MAX_DATA_BYTES = 512 << 20  # of the process; a report is bounded far below
REPLACED_AFTER_BYTES = 64 << 20  # of trace: a new process gives back the memory that a busy job took
ANSWER_SECONDS = 120.0  # for the rest of the trace and the payload, which take a second on a free processor
_BUFFER_BYTES = 1 << 20
_HEAD = struct.Struct("<cI")
_START, _TRACE, _END, _COUNTS, _BODY = b"S", b"T", b"E", b"C", b"B"  # the kinds of messages
_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from workers.report import trace_reader; trace_reader.main()"


class TraceReaderFailed(Exception):
    """The process has ended, or does not answer: the report of the run is lost."""


class ReaderProcess:
    """The process of a slot. `send` and `receive` raise TraceReaderFailed."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self.bytes_read = 0
        try:
            # Standard input is the connection. A session of its own: a terminal's signals are for the worker.
            command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT)]
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/", start_new_session=True
            )
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, kind: bytes, message: bytes) -> None:
        self.bytes_read += len(message)
        try:
            self._connection.sendall(_HEAD.pack(kind, len(message)))
            self._connection.sendall(message)
        except OSError as error:
            raise TraceReaderFailed(f"the process that reads the trace has ended: {error}") from error

    def receive(self, *kinds: bytes) -> list[bytes]:
        """Return the next messages, which are of these kinds."""
        try:
            self._connection.settimeout(ANSWER_SECONDS)
            with self._connection.makefile("rb") as stream:
                answer = [_receive(stream) for _ in kinds]
            self._connection.settimeout(None)
        except OSError as error:
            raise TraceReaderFailed(f"the process that reads the trace does not answer: {error}") from error
        if tuple(kind for kind, _ in answer) != kinds:
            raise TraceReaderFailed("the process that reads the trace has ended without an answer")
        return [message for _, message in answer]

    def close(self) -> None:
        """End the process, and wait for its end. Whoever waits in `send` gets TraceReaderFailed."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


class TraceReader:
    """The report of one run, in the process of its slot."""

    def __init__(self, process: ReaderProcess, mount_points: MountPoints, expected: Sequence[str]) -> None:
        self._process = process
        self._lock = threading.Lock()  # the engine's thread may still feed when its run has ended
        self._is_over = False
        self.has_answered = False
        process.send(_START, pickle.dumps((mount_points, tuple(expected))))

    def feed(self, data: bytes) -> None:
        """Hand over some of the trace, cut anywhere. Waits while the process is behind."""
        with self._lock:
            if self._is_over:
                raise TraceReaderFailed("the run has ended")
            self._process.send(_TRACE, data)

    def payload(self, *, metadata: Mapping[str, Any], result: RunResult, spec: RunSpec) -> tuple[bytes, dict[str, Any]]:
        """Return the body for ingest, and its counts. Call it once, after the run; see `RunReport.payload`."""
        if not self._lock.acquire(timeout=ANSWER_SECONDS):
            raise TraceReaderFailed("the process that reads the trace takes no more of it")
        try:
            self._is_over = True
            self._process.send(_END, pickle.dumps((dict(metadata), result, spec)))
            counts, body = self._process.receive(_COUNTS, _BODY)
        finally:
            self._lock.release()
        self.has_answered = True
        return body, json.loads(counts)


class TraceReaders:
    """The processes of a worker, one for each slot that has needed one."""

    def __init__(self) -> None:
        self._idle: dict[int, ReaderProcess] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    @contextlib.contextmanager
    def reading(self, slot: int, mount_points: MountPoints, *, expected: Sequence[str] = ()) -> Iterator[TraceReader]:
        """Read the trace of one run. Raises OSError where no process can be started."""
        process: ReaderProcess | None = self._idle.pop(slot, None)
        try:
            process = process or ReaderProcess()
            try:
                reader = TraceReader(process, mount_points, expected)
            except TraceReaderFailed:  # it has ended since the run before
                process.close()
                process = ReaderProcess()
                reader = TraceReader(process, mount_points, expected)
            yield reader
            if reader.has_answered and process.bytes_read < REPLACED_AFTER_BYTES:
                process = self._kept(slot, process)
        finally:
            if process is not None:
                process.close()

    def _kept(self, slot: int, process: ReaderProcess) -> ReaderProcess | None:
        """Keep a process for the next run of its slot. Returns it when the worker ends."""
        with self._lock:
            if self._is_closed:
                return process
            self._idle[slot] = process
            return None

    def close(self) -> None:
        """End the processes that read no trace; the others end with their runs."""
        with self._lock:
            self._is_closed = True
            for process in self._idle.values():
                process.close()
            self._idle.clear()


def _receive(stream: io.BufferedReader[Any]) -> tuple[bytes, bytes]:
    """Return kind and content of the next message; the kind is empty at the end of the connection."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return b"", b""
    kind, size = _HEAD.unpack(head)
    message = stream.read(size)
    return (kind, message) if len(message) == size else (b"", b"")


def main() -> None:
    """Serve the runs of a slot, as its process, until the connection ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a service manager sends it to all processes of the worker
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = socket.socket(fileno=0)
    stream = io.BufferedReader(socket.SocketIO(connection, "rb"), _BUFFER_BYTES)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while _serve(stream, connection):
            pass


def _serve(stream: io.BufferedReader[Any], connection: socket.socket) -> bool:
    """Serve one run. Returns whether there may be another one."""
    kind, message = _receive(stream)
    if kind != _START:
        return False
    mount_points, expected = pickle.loads(message)  # noqa: S301  # of the worker; a trace is a message of another kind
    report = RunReport(mount_points, expected=expected)
    while (received := _receive(stream))[0] == _TRACE:
        report.feed(received[1])
    kind, message = received
    if kind != _END:
        return False
    metadata, result, spec = pickle.loads(message)  # noqa: S301  # likewise
    body = report.payload(metadata=metadata, result=result, spec=spec)
    for kind, message in ((_COUNTS, json.dumps(body["counts"]).encode()), (_BODY, encoded(body))):
        connection.sendall(_HEAD.pack(kind, len(message)) + message)
    return True
