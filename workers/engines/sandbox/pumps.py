"""Threads that read the job's output and its trace to the end, and pass on no more than the cap."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import threading
from collections import Counter, deque
from pathlib import Path

from workers.engines.contract import Sink

_CHUNK = 1 << 20
_LONGEST_LINE = _CHUNK  # at least: a line within one chunk is not measured
_TAIL = 512  # bytes of the end of a longer line, which has the result of the call
_BEGINNING = 4096
_IDLE_MS = 50
_GATHER_SECONDS, _GATHERED = 0.02, 64 << 10  # a chunk below this size is followed by a pause
_MOST_ANSWERED = 1024
_F_SETPIPE_SZ = 1031


class PipePump(threading.Thread):
    """Reads `descriptor` to its end and closes it. A sink that raised is not called again; `error` keeps why."""

    def __init__(self, name: str, descriptor: int, sink: Sink, cap: int) -> None:
        super().__init__(name=name, daemon=True)
        self.descriptor, self.sink, self.cap = descriptor, sink, cap
        self.total = 0
        self.passed_on = 0
        self.truncated = False
        self.error: Exception | None = None
        self.beginning = b""

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        try:
            while True:
                if not poll.poll(_IDLE_MS):
                    self.idle()
                elif chunk := os.read(self.descriptor, _CHUNK):
                    self.take(chunk)
                    self.gather(len(chunk))
                else:
                    break
        except Exception as error:  # noqa: BLE001  # a bug here must end the job, not hang it
            self.error = error
        finally:
            os.close(self.descriptor)

    def idle(self) -> None:
        """Handle a pause in which no data came."""

    def gather(self, size: int) -> None:
        """Let more data come after a chunk of this size."""

    def take(self, chunk: bytes) -> None:
        self.total += len(chunk)
        if len(self.beginning) < _BEGINNING:
            self.beginning += chunk[:_BEGINNING]
        fits = chunk[: self.cap - self.passed_on]
        if len(fits) < len(chunk):
            self.truncated = True
        self.pass_on(fits)

    def pass_on(self, data: bytes) -> None:
        if not data or self.error:
            return
        self.passed_on += len(data)
        try:
            self.sink(data)
        except Exception as error:  # noqa: BLE001  # the sink is the caller's code; the pipe must be read anyway
            self.error = error


class TracePump(PipePump):
    """Passes on whole lines of the trace, from the command's own `execve` on.

    `own_execs`: how many programs the sandbox starts before the command. Up to then no foreign code has run, so the
    lines can be trusted; strings in later ones are escaped by strace, so no command can forge a line. From then on two
    kinds of lines are left out: those of the sandbox's first process, which is outside of the namespaces and so out of
    the command's reach, and the expected ends of its other ones. All other lines of pid 1 of the sandbox are evidence.
    A line that is too long loses its middle: its rest is never a line of its own.
    """

    _EXEC = re.compile(rb"(\d+) +[\d.]+ execve(?:at)?\(")
    _CALL = re.compile(rb"(\d+) +[\d.]+ (\w+)\(")
    _EXPECTED_END = re.compile(rb"\d+ +[\d.]+ \+\+\+ (?:exited with \d+|killed by SIGKILL) \+\+\+$")
    _ENDED = re.compile(rb" *[\d.]+ \+\+\+ (?:exited with (\d+)|killed by (SIG[\w+]+)(?: \(core dumped\))?) \+\+\+$")

    def __init__(self, descriptor: int, sink: Sink, cap: int, *, own_execs: int) -> None:
        super().__init__("trace", descriptor, sink, cap)
        with contextlib.suppress(OSError):  # a larger pipe means fewer switches between tracer and worker
            fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _CHUNK)
        self.own_execs = own_execs
        self.own_pids: dict[bytes, None] = {}  # in the order of their first lines
        self.outer_prefix = b" "  # no line begins with it
        self.inner_prefixes: tuple[bytes, ...] = ()
        self.command: bytes | None = None  # the pid of the command, once it was started
        self.exit_code: int | None = None
        self.killed_by: str | None = None
        self._hurried = threading.Event()
        self._rest = self._tail = b""  # of the line that is not complete
        self._answered: deque[bytes] = deque()
        self._call_keys: Counter[tuple[bytes, ...]] = Counter()
        self._answered_names: frozenset[bytes] = frozenset()
        self._own_marks: tuple[bytes, ...] = ()  # what begins a line of the sandbox's own processes
        self._command_end: re.Pattern[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        """Report whether the command itself has ended, whatever else still runs."""
        return self.exit_code is not None or self.killed_by is not None

    def run(self) -> None:
        super().run()
        self._add_answered()
        if self._rest and self.command:
            self.truncated = True  # the tracer was killed in the middle of a line

    def take(self, chunk: bytes) -> None:
        first, newline, rest = chunk.partition(b"\n")
        self._keep(first)
        if not newline:
            return
        first = self._rest + self._tail
        self._rest = self._tail = b""
        whole, newline, last = rest.rpartition(b"\n")
        self._keep(last)
        data = b"\n".join((first, whole, b"")) if newline else first + b"\n"
        if self._is_plain(data):
            self._pass_on_data(data)
            return
        lines = data[:-1].split(b"\n")
        if self.command is None:
            lines = self._after_start(lines)
        self._add([line for line in lines if not self._is_own(line)])

    def _is_plain(self, data: bytes) -> bool:
        """Report whether all of these lines are the command's, none is its end, and none has to be merged.

        That holds for nearly all of a busy job, whose lines are then not looked at one by one.
        """
        if (
            self._command_end is None
            or self._answered
            or any(b" " + name + b"(" in data for name in self._answered_names)
        ):
            return False
        text = b"\n" + data
        return not any(mark in text for mark in self._own_marks) and not self._command_end.search(text)

    def _keep(self, part: bytes) -> None:
        """Add to the incomplete line; a line that is too long keeps its beginning and its last bytes."""
        room = _LONGEST_LINE - len(self._rest)
        self._rest += part[:room]
        self._tail = (self._tail + part[room:])[-_TAIL:]

    def gather(self, size: int) -> None:
        """Pause after a small chunk: strace writes each line by itself, and would wake this thread for each."""
        if size < _GATHERED:
            self._hurried.wait(_GATHER_SECONDS)

    def hurry(self) -> None:
        """Pause no more: the job ends."""
        self._hurried.set()

    def idle(self) -> None:
        """Add the answered calls: strace has written all that happened so far."""
        if self.command is not None:
            self._add_answered()

    def answered(self, line: bytes) -> None:
        """Add a line about a call before the worker answers it; from any thread."""
        if len(self._call_keys) > _MOST_ANSWERED:
            self._call_keys.clear()
        key = self._call_key(line)
        self._answered_names |= set(key[1:2])
        self._call_keys[key] += 1
        self._answered.append(line)

    def _merged(self, lines: list[bytes]) -> list[bytes]:
        """Return the lines of both sources in the order of their times: the meaning of a descriptor depends on it."""
        found: list[bytes] = []
        for line in lines:
            while self._answered and self._time(self._answered[0]) < self._time(line):
                found.append(self._answered.popleft())
            if not self._is_known(line):
                found.append(line)
        return found

    def _add_answered(self) -> None:
        lines = []
        while self._answered:
            lines.append(self._answered.popleft())
        self._pass_on_lines(lines)

    def _is_known(self, line: bytes) -> bool:
        """Report whether the call is recorded already: strace sees the calls of a process that has no filter yet."""
        if not self._call_keys or not self._call_keys[key := self._call_key(line)]:
            return False
        self._call_keys[key] -= 1
        return True

    def _call_key(self, line: bytes) -> tuple[bytes, ...]:
        """Return process, call and result, which identify a call."""
        match = self._CALL.match(line)
        return (*match.groups(), line.rpartition(b" = ")[2].split(b"<", 1)[0]) if match else ()

    @staticmethod
    def _time(line: bytes) -> bytes:
        """Return the seconds since 1970 with six decimals: all have one length, so the bytes can be compared."""
        words = line.split(None, 2)
        return words[1] if len(words) == 3 else b""

    def _add(self, lines: list[bytes]) -> None:
        if self._answered or self._call_keys:
            lines = self._merged(lines)
        self._detect_exit(lines)
        self._pass_on_lines(lines)

    def _pass_on_lines(self, lines: list[bytes]) -> None:
        self._pass_on_data(b"".join(line + b"\n" for line in lines))

    def _pass_on_data(self, data: bytes) -> None:
        self.total += len(data)
        if self.truncated:
            return
        room = self.cap - self.passed_on
        if len(data) > room:
            self.truncated = True
            data = data[: data.rfind(b"\n", 0, max(room, 0)) + 1]
        self.pass_on(data)

    def _after_start(self, lines: list[bytes]) -> list[bytes]:
        for index, line in enumerate(lines):
            match = self._EXEC.match(line)
            if match and self.own_execs == 0:
                self.command = match[1]
                self.own_pids.pop(match[1], None)
                prefixes = [pid + b" " for pid in self.own_pids]
                self.outer_prefix, self.inner_prefixes = (prefixes or [b" "])[0], tuple(prefixes[1:])
                self._own_marks = tuple(b"\n" + prefix for prefix in prefixes)
                self._command_end = re.compile(rb"\n" + match[1] + rb" +[\d.]+ \+\+\+ ")
                return lines[index:]
            self.own_execs -= bool(match)
            self.own_pids[line.split(b" ", 1)[0]] = None
        return []

    def _is_own(self, line: bytes) -> bool:
        if line.startswith(self.outer_prefix):
            return True
        return line.startswith(self.inner_prefixes) and bool(self._EXPECTED_END.match(line))

    def _detect_exit(self, lines: list[bytes]) -> None:
        if self.command is None:
            return
        prefix = self.command + b" "
        for line in lines:
            if b" +++ " in line and line.startswith(prefix) and (match := self._ENDED.match(line[len(prefix) :])):
                self.exit_code = int(match[1]) if match[1] else None
                self.killed_by = match[2].decode() if match[2] else None


def trace_fifo(directory: Path, owner: int | None) -> tuple[Path, int, int]:
    """Make a FIFO that only the tracer's uid can open.

    strace would pass an inherited descriptor on to the command, which could then write lines of its own.

    Returns:
        Its path, the end to read, and an end to keep open until the exit.
    """
    path = directory / "trace"
    os.mkfifo(path, 0o600)
    if owner is not None:
        os.chown(path, owner, owner)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(reader, True)
    return path, reader, os.open(path, os.O_WRONLY | os.O_CLOEXEC)
