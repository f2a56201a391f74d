"""The processes of a run, from a trace in which fork returns other numbers than the ones that name the lines.

In a pid namespace `clone` returns the number inside, and each line carries the number outside. Both are given out in
the same order, so once the run is over the n-th smallest returned is the n-th smallest seen. While it runs a good guess
is enough: it only decides whose program and directory count for a fact.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_RECORDS = 4_000  # of processes and threads; beyond it they are counted, and share one nameless record
MAX_EXEC_PATHS = 5
MAX_PATH = 1024
MAX_COMMAND = 1024
LARGEST_PID = 1 << 22

_INTERPRETERS = ("python", "node", "sh", "bash", "dash", "ruby", "perl", "php")


@dataclass(frozen=True, slots=True)
class Program:
    """What a process executes. `names`: of the file, and of the script when the file is an interpreter.

    `own`: the file or script lies where the job can write, so its name proves nothing.
    """

    path: str = ""
    names: frozenset[str] = frozenset()
    own: bool = True

    def is_one_of(self, names: frozenset[str]) -> bool:
        return not self.names.isdisjoint(names)


@dataclass(slots=True, eq=False)
class TracedProcess:
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
        """The process that this thread belongs to; itself if it is one."""
        found, hops = self, 0
        while found.is_thread and found.parent is not None and hops < MAX_RECORDS:
            found, hops = found.parent, hops + 1
        return found


@dataclass(frozen=True, slots=True)
class _Birth:
    number: int  # as clone returned it
    parent: TracedProcess
    is_thread: bool


class ProcessTree:
    """Who exists, who is whose child, what each executes. The first pid of the trace is the command itself."""

    def __init__(self, directory: str) -> None:
        self.root: TracedProcess | None = None
        self.total = 0
        self._directory = directory
        self._records: list[TracedProcess] = []
        self._live: dict[int, TracedProcess] = {}
        self._births: list[_Birth] = []
        self._waiting: dict[int, _Birth] = {}  # births that no line has been seen of, by number
        self._inside_clone: dict[int, bool] = {}  # pid → makes a thread
        self._crowd = TracedProcess(0, 0.0, directory)
        self._shift: int | None = None

    def of(self, pid: int, time: float) -> TracedProcess:
        """The thread or process of this line, made known if it is new."""
        return self._live.get(pid) or self._meet(pid, time)

    def _meet(self, pid: int, time: float) -> TracedProcess:
        if len(self._records) >= MAX_RECORDS:
            return self._crowd
        if self.root is None:
            process = self.root = TracedProcess(pid, time, self._directory)
            self.total = 1
        else:
            process = self._newborn(pid, time)
        self._records.append(process)
        self._live[pid] = process
        return process

    def _newborn(self, pid: int, time: float) -> TracedProcess:
        parent, is_thread = self._guess(pid)
        return TracedProcess(pid, time, parent.cwd, parent, is_thread, parent.leader.program)

    def _guess(self, pid: int) -> tuple[TracedProcess, bool]:
        if len(self._inside_clone) == 1:
            [(parent_pid, is_thread)] = self._inside_clone.items()
            return self._live.get(parent_pid, self._crowd), is_thread
        birth = self._waiting.pop(pid, None) or self._waiting.pop(pid - (self._shift or 0), None)
        if not birth and self._waiting:
            birth = self._waiting.pop(next(reversed(self._waiting)))
            self._shift = pid - birth.number
        return (birth.parent, birth.is_thread) if birth else (self.root or self._crowd, False)

    def enters_clone(self, process: TracedProcess, *, is_thread: bool) -> None:
        self._inside_clone[process.pid] = is_thread

    def forked(self, process: TracedProcess, number: int | None, *, is_thread: bool) -> None:
        """A clone ended; `number` is what it returned, None or negative if nothing was born."""
        self._inside_clone.pop(process.pid, None)
        if number is None or number <= 0:
            return
        self.total += not is_thread
        if len(self._births) < MAX_RECORDS:
            birth = _Birth(number, process, is_thread)
            self._births.append(birth)
            self._waiting[number] = birth
            if number in self._live:  # no namespace between: it was seen before its parent came back
                del self._waiting[number]

    def executed(self, process: TracedProcess, program: Program, *, command: str, shown: str) -> None:
        """Threads that execute have become their process (strace says so); a thread only guessed was none."""
        if process is self._crowd:
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
        if process is not self._crowd:
            process.ended_at, process.exit_code, process.signal = time, code, signal

    def settled(self) -> list[TracedProcess]:
        """Everyone but threads, with the true parents, in the order of their first line. For the end of the run."""
        for process, birth in self._matched():
            # Who has executed a program is a process: a thread that does so goes on under its process's number.
            process.parent, process.is_thread = birth.parent, birth.is_thread and not process.exec_count
        for process in self._records:
            if process.is_thread:
                process.leader.rules |= process.rules
        return [process for process in self._records if not process.is_thread]

    def _matched(self) -> Iterator[tuple[TracedProcess, _Birth]]:
        """Numbers outside run ahead of numbers inside and never fall back: one that would has an unknown birth."""
        seen = iter(
            sorted(
                (self._count(one.pid), place, one) for place, one in enumerate(self._records) if one is not self.root
            )
        )
        ahead: float = -math.inf
        for number, _, birth in sorted(self._numbered()):
            place, _, process = next((one for one in seen if one[0] - number >= ahead), (0, 0, None))
            if process is None:
                return
            ahead = place - number
            if process is not birth.parent:
                yield process, birth

    def _numbered(self) -> Iterator[tuple[int, int, _Birth]]:
        """Inside a namespace numbers start small; without one they go on from the root's."""
        is_inside = bool(self._births) and self.root is not None and self._births[0].number < self.root.pid
        for place, birth in enumerate(self._births):
            yield birth.number if is_inside else self._count(birth.number), place, birth

    def _count(self, number: int) -> int:
        """The kernel counts up from the root's number, and starts again from below when it has reached its largest."""
        return number if self.root is None or number >= self.root.pid else number + LARGEST_PID


def program_of(path: str, argv: tuple[str, ...], *, is_own: bool, script_is_own: bool) -> Program:
    """The program behind an execve. Only an interpreter's first argument is a name worth knowing: what `cat npm` reads
    does not make it npm.
    """
    names = {posixpath.basename(path)}
    script = script_of(path, argv)
    if script is None:
        return Program(path, frozenset(names), is_own)
    return Program(path, frozenset({*names, posixpath.basename(script)}), is_own or script_is_own)


def script_of(path: str, argv: tuple[str, ...]) -> str | None:
    """The script or module that an interpreter was told to run."""
    if not posixpath.basename(path).startswith(_INTERPRETERS) or len(argv) < 2:
        return None
    if argv[1] == "-m" and len(argv) > 2:
        return argv[2]
    return None if argv[1].startswith("-") else argv[1]
