"""Parses what strace writes, line by line, while it is written: bytes in, small events out, in bounded memory.

The trace is evidence about a hostile program, which chose parts of it. A line is read from left to right and either
understood or counted in `bad_lines`; no input raises. The options of strace are in `sandbox/command.py`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from workers.engines.tracing.values import Descriptor, descriptor, pieces

MAX_LINE = 64 << 10  # of a longer line the beginning and the last bytes are kept
_TAIL = 512
_MAX_PENDING = 1024  # threads inside a call at the same time; the job's process limit is far below
_PENDING_BYTES = 16 << 10

_PREFIX = re.compile(rb"(\d{1,10}) +(\d{1,11}\.\d{1,9}) ")
_NAME = re.compile(rb"([a-z_][a-z_0-9]{0,39})\(")
_RESUMED = re.compile(rb"<\.\.\. ([a-z_][a-z_0-9]{0,39}) resumed>")
_UNFINISHED = re.compile(rb" ?<(unfinished|pid changed to \d{1,10}) \.\.\.>$")
_ENDED = re.compile(rb"\+\+\+ (?:exited with (\d{1,10})|killed by (SIG[A-Z0-9_+]{1,12})(?: \(core dumped\))?) \+\+\+$")
_SUPERSEDED = re.compile(rb"\+\+\+ superseded by execve in pid (\d{1,10}) \+\+\+$")
_SIGNAL = re.compile(rb"--- (?:SIG|stopped by SIG)")
_RESULT = re.compile(
    rb"\s*= (\?|-?\d{1,20}|0x[0-9a-f]{1,16})(?![0-9a-f])(<.*>(?:\(deleted\))?)?(?: (?P<errno>E[A-Z0-9]{1,20})\b)?"
)
_CUT_RESULT = re.compile(rb"\)\s+= (-?\d{1,20}|\?)()(?: (?P<errno>E[A-Z0-9]{1,20}) \([^()\"<>]*\))?$")


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One system call that ended, or was cut off by the end of its thread (`result` None).

    `time` is Unix time; `arguments` are raw, for `values`; `cut`: the line was too long and lost its middle.
    """

    time: float
    pid: int
    name: str
    arguments: tuple[bytes, ...]
    result: int | None
    errno: str | None = None
    opened: Descriptor | None = None
    cut: bool = False

    @property
    def ok(self) -> bool:
        return self.result is not None and self.result >= 0


@dataclass(frozen=True, slots=True)
class Entered:
    """A call that began and has not ended: its thread waits, or strace showed another thread first."""

    time: float
    pid: int
    name: str
    arguments: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """A thread or process that exited."""

    time: float
    pid: int
    code: int


@dataclass(frozen=True, slots=True)
class Killed:
    """A thread or process that a signal killed."""

    time: float
    pid: int
    signal: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """Thread `thread` of process `pid` called execve: the process continues under `pid`, the thread is gone."""

    time: float
    pid: int
    thread: int


Event = TracedCall | Entered | Exited | Killed | Superseded


@dataclass(frozen=True, slots=True)
class _Pending:
    time: float
    head: bytes
    replaced: bool = False


class StraceReader:
    """Parses bytes, cut anywhere, and yields events in the order of the trace."""

    def __init__(self) -> None:
        self.lines = 0
        self.bad_lines = 0
        self._head = b""
        self._tail = b""
        self._pending: OrderedDict[int, _Pending] = OrderedDict()

    def feed(self, data: bytes) -> Iterator[Event]:
        for line, cut in self.split(data):
            yield from self.read(line, cut=cut)

    def split(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield the lines that are complete, each with whether it was too long and lost its middle."""
        *lines, rest = data.split(b"\n")
        for place, line in enumerate(lines):
            if place == 0:
                self._keep(line)
                yield self._take()
            else:
                yield _shortened(line)
        self._keep(rest)

    def skip(self) -> None:
        """Count a line that the caller has understood without `read`."""
        self.lines += 1

    def finish(self) -> Iterator[Event]:
        """Yield the end of the trace: an unfinished last line, and the calls that never returned."""
        if self._head:
            line, cut = self._take()
            yield from self.read(line, cut=cut)
        for pid in list(self._pending):
            yield from self._abandon(pid)

    def _keep(self, part: bytes) -> None:
        room = MAX_LINE - len(self._head)
        self._head += part[:room]
        self._tail = (self._tail + part[room:])[-_TAIL:]

    def _take(self) -> tuple[bytes, bool]:
        line, cut = self._head + self._tail, bool(self._tail)
        self._head = self._tail = b""
        return line, cut

    def read(self, line: bytes, *, cut: bool) -> Iterator[Event]:
        """Yield the events of one line of `split`."""
        self.lines += 1
        events = self._read(line, cut=cut)
        if events is None:
            self.bad_lines += 1
        else:
            yield from events

    def _read(self, line: bytes, *, cut: bool) -> list[Event] | None:
        parts = split_line(line)
        if parts is None:
            return None
        pid, time, rest = parts
        if rest.startswith(b"+++"):
            return self._end(time, pid, rest)
        if rest.startswith(b"---"):
            return [] if _SIGNAL.match(rest) else None
        if rest.startswith(b"<..."):
            return self._resumed(pid, rest, cut=cut)
        if unfinished := _UNFINISHED.search(rest, max(0, len(rest) - 48)):
            return self._unfinished(time, pid, rest[: unfinished.start()], replaced=unfinished[1] != b"unfinished")
        call = _call(time, pid, rest, cut=cut)
        return [call] if call else None

    def _end(self, time: float, pid: int, rest: bytes) -> list[Event] | None:
        if superseded := _SUPERSEDED.match(rest):
            thread = int(superseded[1])
            if thread in self._pending:
                self._pending[pid] = self._pending.pop(thread)
            return [Superseded(time, pid, thread)]
        result = _ENDED.match(rest)
        if not result:
            return None
        last: Event = Exited(time, pid, int(result[1])) if result[1] else Killed(time, pid, result[2].decode())
        return [*self._abandon(pid), last]

    def _unfinished(self, time: float, pid: int, head: bytes, *, replaced: bool) -> list[Event] | None:
        name = _NAME.match(head)
        if not name:
            return None
        self._pending[pid] = _Pending(time, head[:_PENDING_BYTES], replaced)
        if len(self._pending) > _MAX_PENDING:
            self._pending.popitem(last=False)
            self.bad_lines += 1
        return [Entered(time, pid, name[1].decode(), head[name.end() : _PENDING_BYTES])]

    def _resumed(self, pid: int, rest: bytes, *, cut: bool) -> list[Event] | None:
        resumed, pending = _RESUMED.match(rest), self._pending.pop(pid, None)
        if not resumed or not pending:
            return None
        # strace 6.1 prints nonsense as the result of an execve that returns under another number.
        rest = b") = 0" if pending.replaced else rest[resumed.end() :]
        call = _call(pending.time, pid, pending.head + rest, cut=cut)
        return [call] if call else None

    def _abandon(self, pid: int) -> list[Event]:
        pending = self._pending.pop(pid, None)
        call = _call(pending.time, pid, pending.head + b") = ?", cut=False) if pending else None
        return [call] if call else []


def split_line(line: bytes) -> tuple[int, float, bytes] | None:
    """Return process, time and what happened, of a line with this form."""
    prefix = _PREFIX.match(line)
    return (int(prefix[1]), float(prefix[2]), line[prefix.end() :]) if prefix else None


def _shortened(line: bytes) -> tuple[bytes, bool]:
    if len(line) <= MAX_LINE:
        return line, False
    return line[:MAX_LINE] + line[MAX_LINE:][-_TAIL:], True


def _call(time: float, pid: int, rest: bytes, *, cut: bool) -> TracedCall | None:
    name = _NAME.match(rest)
    if not name:
        return None
    arguments, closed = pieces(rest[:MAX_LINE] if cut else rest, name.end())
    result = _RESULT.match(rest, closed + 1) if closed >= 0 else _CUT_RESULT.search(rest, max(0, len(rest) - _TAIL))
    if not cut and (closed < 0 or not result):
        return None
    # Of a line that lost its middle the result counts only if its last bytes leave no doubt.
    value = result[1] if result else b"?"
    errno = result["errno"].decode() if result and result["errno"] else None
    opened = descriptor(result[1] + result[2]) if result and closed >= 0 and result[2] else None
    return TracedCall(time, pid, name[1].decode(), tuple(arguments), _number(value), errno, opened, cut)


def _number(value: bytes) -> int | None:
    return None if value == b"?" else int(value, 0)
