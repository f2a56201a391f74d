"""A strict engine for tests of the worker: it runs nothing and follows the words of the command.

`["null", "print=hello", "sleep=5", "ignore-term", "exit=3"]`, from left to right:

    print=TEXT          a line of output           sleep=SECONDS       until then, TERM or the deadline
    trace=PATH          the file's lines as trace  ignore-term         from here on only KILL ends it
    network=NAME:VERDICT  a network record         exit=CODE           ends it at once
    kind=KIND           ends it at once as KIND    signal=NAME         ends it at once by this signal
    memory-kills=N      is reported with its end
    unavailable, sandbox-failed                    raise what an engine raises

A step of a job has the form `["sh", "-c", "null print=hello exit=3"]`. A word that is not in this list is an error, as
is a second job in a slot that still runs one.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workers.engines.contract import (
    EngineCapabilities,
    EngineUnavailable,
    Isolation,
    MountPoints,
    NetworkRecord,
    RunLimits,
    RunResult,
    RunSpec,
    SandboxFailed,
    Sink,
    StopSignal,
    TraceLevel,
)

FLAG = "RUNTIME_ORCHESTRATOR_TEST"
_TICK = 0.01


@dataclass
class _CommandEnded(Exception):
    """The end of the command, raised by the word that ends it."""

    kind: str
    exit_code: int | None = None
    signal: str | None = None


@dataclass
class _Execution:
    """The state of one command."""

    spec: RunSpec
    output: Sink
    trace: Sink
    stop: StopSignal
    deadline: float
    has_started: bool = False
    ignores_term: bool = False
    printed: int = 0
    traced: int = 0
    memory_kills: int = 0
    network: list[NetworkRecord] = field(default_factory=list)

    def execute(self, word: str) -> None:
        name, _, value = word.partition("=")
        if not self.has_started and name not in ("unavailable", "sandbox-failed"):
            self.has_started = True
            if self.spec.trace is TraceLevel.NONE:
                self.trace(b"")
        getattr(self, _WORDS[name])(value)

    def unavailable(self, _: str) -> None:
        raise EngineUnavailable("requested by the command")

    def sandbox_failed(self, _: str) -> None:
        raise SandboxFailed("requested by the command")

    def print(self, value: str) -> None:
        data = f"{value}\n".encode()
        self.printed += len(data)
        self.output(data)

    def count_kills(self, value: str) -> None:
        self.memory_kills = int(value)

    def read_trace(self, value: str) -> None:
        for line in Path(value).read_bytes().splitlines(keepends=True):
            fits = self.traced + len(line) <= self.spec.limits.trace_bytes
            self.traced += len(line)
            if fits and self.spec.trace is not TraceLevel.NONE:
                self.trace(line)

    def note_network(self, value: str) -> None:
        name, _, verdict = value.rpartition(":")
        self.network.append(NetworkRecord(name, 443, verdict))

    def ignore_term(self, _: str) -> None:
        self.ignores_term = True

    def exit(self, value: str) -> None:
        raise _CommandEnded("exited", int(value))

    def end_with_kind(self, value: str) -> None:
        raise _CommandEnded(value)

    def end_with_signal(self, value: str) -> None:
        raise _CommandEnded("signaled", signal=value)

    def sleep(self, value: str) -> None:
        end = time.monotonic() + float(value)
        while time.monotonic() < end:
            self.check_stop()
            self.stop.requested.wait(_TICK)

    def check_stop(self) -> None:
        """End the command when its deadline has passed or a stop was requested."""
        stopped = self.stop.requested.is_set() or self.stop.immediate.is_set()
        if not stopped and time.monotonic() < self.deadline:
            return
        kind = "stopped" if stopped else "timeout"
        if self.ignores_term or self.stop.immediate.is_set():
            self.stop.immediate.wait(self.spec.grace_seconds)
            raise _CommandEnded(kind, signal="SIGKILL")
        raise _CommandEnded(kind, signal="SIGTERM")


_WORDS = {
    "unavailable": "unavailable", "sandbox-failed": "sandbox_failed", "print": "print", "trace": "read_trace",
    "network": "note_network", "ignore-term": "ignore_term", "exit": "exit", "kind": "end_with_kind",
    "signal": "end_with_signal", "sleep": "sleep", "memory-kills": "count_kills",
}  # fmt: skip


class NullEngine:
    """An engine that isolates nothing. It requires `RUNTIME_ORCHESTRATOR_TEST=1`, which tests set."""

    name = "null"
    isolation = Isolation.NONE

    def __init__(self) -> None:
        if os.environ.get(FLAG) != "1":
            raise EngineUnavailable(f"the null engine is for tests only: they set {FLAG}=1")
        self._busy: set[int] = set()
        self._lock = threading.Lock()

    def check(self) -> EngineCapabilities:
        return EngineCapabilities(offered=frozenset({"linux", "ptrace", "namespaces", "egress", "exec_control"}))

    def reserved(self, slot: int) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002  # no uid
        return contextlib.nullcontext()

    def owner(self, slot: int) -> int | None:  # noqa: ARG002  # no other uid
        return None

    def directory(self, slot: int, folder: Path, limits: RunLimits) -> Path:  # noqa: ARG002  # it holds no limits
        return folder

    def reset(self, slot: int) -> None:
        pass

    def shortage(self, folder: Path) -> str | None:  # noqa: ARG002  # it keeps nothing free
        return None

    def mount_points(self, spec: RunSpec) -> MountPoints:
        return MountPoints(workspace=str(spec.workspace))

    def run(
        self,
        spec: RunSpec,
        *,
        output: Sink,
        trace: Sink,
        stop: StopSignal,
        errors: Sink | None = None,  # noqa: ARG002  # nothing is ever written there
    ) -> RunResult:
        with self._lock:
            if spec.slot in self._busy:
                raise EngineUnavailable(f"slot {spec.slot} already runs a job")
            self._busy.add(spec.slot)
        try:
            execution = _Execution(spec, output, trace, stop, time.monotonic() + spec.timeout_seconds)
            return _execute(execution)
        finally:
            with self._lock:
                self._busy.discard(spec.slot)

    def clean(self, slots: Sequence[int]) -> None:
        """Do nothing: there is nothing to clean."""


def _execute(execution: _Execution) -> RunResult:
    started_at = time.time()
    argv = execution.spec.argv
    program, *words = shlex.split(argv[2]) if argv[:2] == ("sh", "-c") else argv
    unknown = [word for word in words if word.partition("=")[0] not in _WORDS]
    if program != "null" or unknown:
        raise ValueError(f"not a command for the null engine: {' '.join(execution.spec.argv)}")
    try:
        for word in words:
            execution.check_stop()
            execution.execute(word)
        end = _CommandEnded("exited", 0)
    except _CommandEnded as thrown:
        end = thrown
    return RunResult(
        kind=end.kind,
        exit_code=end.exit_code,
        signal=end.signal,
        started_at=started_at,
        finished_at=time.time(),
        output_bytes=execution.printed,
        trace_bytes=execution.traced,
        trace_truncated=execution.traced > execution.spec.limits.trace_bytes,
        tool_version="null",
        memory_kills=execution.memory_kills,
        network=tuple(execution.network),
    )
