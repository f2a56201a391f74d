"""The processes of a run, from a trace in which fork returns other numbers than those of the lines.

In a pid namespace `clone` returns the number inside, and each line has the number outside. Both are assigned in the
same order, so at the end of the run the n-th smallest returned is the n-th smallest seen. While it runs a guess is
enough: it only decides which program and directory an event belongs to.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_RECORDS = 4_000  # of processes and threads; the rest is counted, and shares one record
MAX_EXEC_PATHS = 5
MAX_PATH = 1024
MAX_COMMAND = 1024
LARGEST_PID = 1 << 22

# With a version or without: python3.11, and neither sha256sum nor shuf.
_INTERPRETER = re.compile(r"(?:python|node|nodejs|sh|bash|dash|ruby|perl|php)[0-9.]*")


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a process. `names`: of the file, and of the script when the file is an interpreter.

    `own`: the file or script is where the job can write, so its name proves nothing.
    """

    path: str = ""
    names: frozenset[str] = frozenset()
    own: bool = True

    def is_one_of(self, names: frozenset[str]) -> bool:
        return not self.names.isdisjoint(names)


@dataclass(slots=True, eq=False)
class TracedProcess:
    """A process or thread of the trace."""

    pid: int
    first_seen: float
    cwd: str
    parent: TracedProcess | None = None
    is_thread: bool = False
    program: Program = Program()
    command: str = ""
    exec_count: int = 0
    exec_paths: list[str] = field(default_factory=list)
    ended_at: float | None = None
    exit_code: int | None = None
    signal: str | None = None
    rules: set[str] = field(default_factory=set)

    @property
    def leader(self) -> TracedProcess:
        """Return the process that this thread belongs to; itself if it is a process."""
        found, hops = self, 0
        while found.is_thread and found.parent is not None and hops < MAX_RECORDS:
            found, hops = found.parent, hops + 1
        return found


@dataclass(frozen=True, slots=True)
class _Clone:
    number: int  # as clone returned it
    parent: TracedProcess
    is_thread: bool


class ProcessTree:
    """The process tree of a run. The first pid of the trace is the command itself."""

    def __init__(self, directory: str) -> None:
        self.root: TracedProcess | None = None
        self.total = 0
        self._directory = directory
        self._records: list[TracedProcess] = []
        self._live: dict[int, TracedProcess] = {}
        self._clones: list[_Clone] = []
        self._unmatched: dict[int, _Clone] = {}  # clones without a line so far, by number
        self._inside_clone: dict[int, bool] = {}  # pid → makes a thread
        self._overflow = TracedProcess(0, 0.0, directory)
        self._offset: int | None = None

    def of(self, pid: int, time: float) -> TracedProcess:
        """Return the thread or process of this line; register a new one."""
        return self._live.get(pid) or self._register(pid, time)

    def known(self, pid: int) -> TracedProcess | None:
        """Return what `of` would return, or None where it would register a new one."""
        return self._live.get(pid) or (self._overflow if len(self._records) >= MAX_RECORDS else None)

    def _register(self, pid: int, time: float) -> TracedProcess:
        if len(self._records) >= MAX_RECORDS:
            return self._overflow
        if self.root is None:
            process = self.root = TracedProcess(pid, time, self._directory)
            self.total = 1
        else:
            process = self._new_process(pid, time)
        self._records.append(process)
        self._live[pid] = process
        return process

    def _new_process(self, pid: int, time: float) -> TracedProcess:
        parent, is_thread = self._guess_parent(pid)
        return TracedProcess(pid, time, parent.cwd, parent, is_thread, parent.leader.program)

    def _guess_parent(self, pid: int) -> tuple[TracedProcess, bool]:
        if len(self._inside_clone) == 1:
            [(parent_pid, is_thread)] = self._inside_clone.items()
            return self._live.get(parent_pid, self._overflow), is_thread
        clone = self._unmatched.pop(pid, None) or self._unmatched.pop(pid - (self._offset or 0), None)
        if not clone and self._unmatched:
            clone = self._unmatched.pop(next(reversed(self._unmatched)))
            self._offset = pid - clone.number
        return (clone.parent, clone.is_thread) if clone else (self.root or self._overflow, False)

    def enters_clone(self, process: TracedProcess, *, is_thread: bool) -> None:
        self._inside_clone[process.pid] = is_thread

    def forked(self, process: TracedProcess, number: int | None, *, is_thread: bool) -> None:
        """Record the end of a clone; `number` is its result, None or negative if it failed."""
        self._inside_clone.pop(process.pid, None)
        if number is None or number <= 0:
            return
        self.total += not is_thread
        if len(self._clones) < MAX_RECORDS:
            clone = _Clone(number, process, is_thread)
            self._clones.append(clone)
            self._unmatched[number] = clone
            if number in self._live:  # same namespace: its first line came before the end of the clone
                del self._unmatched[number]

    def executed(self, process: TracedProcess, program: Program, *, command: str, shown: str) -> None:
        """Record an execve. A thread that executes becomes its process."""
        if process is self._overflow:
            return
        process.is_thread = False
        process.program, process.command = program, command[:MAX_COMMAND]
        process.exec_count += 1
        if len(process.exec_paths) < MAX_EXEC_PATHS:
            process.exec_paths.append(shown[:MAX_PATH])

    def superseded(self, pid: int, thread_id: int, time: float) -> None:
        thread = self._live.pop(thread_id, None)
        if thread is not None:
            thread.ended_at = time
            self.of(pid, time).cwd = thread.cwd

    def ended(self, process: TracedProcess, time: float, *, code: int | None = None, signal: str | None = None) -> None:
        self._live.pop(process.pid, None)
        self._inside_clone.pop(process.pid, None)
        if process is not self._overflow:
            process.ended_at, process.exit_code, process.signal = time, code, signal

    def settled(self) -> list[TracedProcess]:
        """Return all processes without threads, with their true parents, at the end of the run."""
        for process, clone in self._matched():
            # What has executed a program is a process: a thread that does so continues under the number of its process.
            process.parent, process.is_thread = clone.parent, clone.is_thread and not process.exec_count
        for process in self._records:
            if process.is_thread:
                process.leader.rules |= process.rules
        return [process for process in self._records if not process.is_thread]

    def _matched(self) -> Iterator[tuple[TracedProcess, _Clone]]:
        """Yield processes with their clones. The numbers outside run ahead of those inside, never less than before."""
        seen = iter(
            sorted(
                (self._count(one.pid), place, one) for place, one in enumerate(self._records) if one is not self.root
            )
        )
        ahead: float = -math.inf
        for number, _, clone in sorted(self._numbered()):
            place, _, process = next((one for one in seen if one[0] - number >= ahead), (0, 0, None))
            if process is None:
                return
            ahead = place - number
            if process is not clone.parent:
                yield process, clone

    def _numbered(self) -> Iterator[tuple[int, int, _Clone]]:
        """Yield the clones by number. In a namespace numbers start small; else they continue from the root's."""
        is_inside = bool(self._clones) and self.root is not None and self._clones[0].number < self.root.pid
        for place, clone in enumerate(self._clones):
            yield clone.number if is_inside else self._count(clone.number), place, clone

    def _count(self, number: int) -> int:
        """Return a number that keeps growing: the kernel starts again from below after its largest pid."""
        return number if self.root is None or number >= self.root.pid else number + LARGEST_PID


def program_of(path: str, argv: tuple[str, ...], *, is_own: bool, script_is_own: bool) -> Program:
    """Return the program of an execve.

    Only an interpreter's first argument counts as a name: what `cat npm` reads does not make it npm.
    """
    names = {posixpath.basename(path)}
    script = script_of(path, argv)
    if script is None:
        return Program(path, frozenset(names), is_own)
    return Program(path, frozenset({*names, posixpath.basename(script)}), is_own or script_is_own)


def script_of(path: str, argv: tuple[str, ...]) -> str | None:
    """Return the script or module that an interpreter runs, or None."""
    if not _INTERPRETER.fullmatch(posixpath.basename(path)) or len(argv) < 2:
        return None
    if argv[1] == "-m" and len(argv) > 2:
        return argv[2]
    return None if argv[1].startswith("-") else argv[1]
