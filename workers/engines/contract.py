"""The engine contract: the interface of what runs a command in isolation, and its promises.

This file contains all that is needed to write another engine.

Order of calls. `reserved()` for each slot, for the life of the worker. `check()` once, at the worker's start, in the
worker's own process and in the thread that later starts the jobs' threads: it tests what this machine can enforce, and
may move them into a mount namespace. `clean()` next, for what an earlier process of the worker left. `shortage()`
before each claim. `directory()` before each job, for its workspace; `reset()` after its workspace was removed. `run()`
once per job, from a thread that lives as long as the job; several may run at the same time in different slots.
`StopSignal.request()` may come from any thread, at any time, also before `run` began and after it ended.

The workspace. The caller makes it in `directory(slot, ...)`, which may be a file system of its own. It gives the
workspace to `owner(slot)` (nothing to do where that is None). The uid must be able to reach it: every directory above
has search permission for others (mode 0711 is enough) and belongs to the worker. The engine makes a second directory
beside it, `<workspace>.private` (home, /tmp, the trace), and removes it at the end, unless `RunSpec.keeps_home` is set.
A worker that was killed leaves it behind: remove it together with the workspace.

Promises. `run` returns only when no process of the job lives. It never runs the command with less isolation than
`Engine.isolation` says, nor with fewer limits than `check` found: where a limit cannot be enforced it raises
`EngineUnavailable` before the command has started. When the worker dies by SIGKILL, all processes of the job die within
a second. When it is stopped (SIGSTOP, a debugger), they die at the deadline of their `StopSignal`.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

Sink = Callable[[bytes], None]

SPARE = range(160, 184)  # slots of the checks at a worker's start; uid 61184 and above are systemd's


class Isolation(enum.StrEnum):
    """Levels of isolation, weakest first. A pool or a job states its minimum."""

    NONE = "none"
    RESTRICTED = "restricted"
    NAMESPACES = "namespaces"

    @property
    def rank(self) -> int:
        """Return the position in the order of strength."""
        return list(Isolation).index(self)

    def satisfies(self, least: Isolation) -> bool:
        """Report whether this level is at least `least`."""
        return self.rank >= least.rank


class EngineUnavailable(Exception):
    """This machine cannot run the job as requested; another may. The command has not started: release, do not fail."""


class SandboxFailed(Exception):
    """The sandbox was started and failed (`sandbox_apply_failed`). `str()` is its error output, sanitized."""


class TraceLevel(enum.StrEnum):
    """Levels of what is traced of a command, least first."""

    NONE = "none"  # no tracer runs
    NETWORK = "network"  # processes and network; no files
    FULL = "full"


@dataclass(frozen=True)
class RunLimits:
    """The limits of one job. An engine that cannot enforce one of them names it in `EngineCapabilities.soft`."""

    memory_bytes: int = 2 << 30
    processes: int = 256
    cpu_percent: int = 100
    disk_bytes: int = 4 << 30
    trace_bytes: int = 256 << 20
    inodes: int = 1 << 20  # files, directories and links of the checkout, the home and /tmp together
    log_head_bytes: int = 8 << 20  # of the output of the whole job; the worker drops what is between head and tail
    log_tail_bytes: int = 8 << 20

    @property
    def output_bytes(self) -> int:
        """Return how much output of a job its log keeps."""
        return self.log_head_bytes + self.log_tail_bytes

    @property
    def max_inodes(self) -> int:
        """Return the limit of inodes. On a small disk it is one per 4 KiB: an empty file counts as one block."""
        return max(min(self.inodes, self.disk_bytes // 4096), 256)


@dataclass(frozen=True)
class EgressPolicy:
    """The hosts that a job with network may reach: host names, `*.suffix` or `host:port` (port 443 unless named)."""

    allow: tuple[str, ...]
    max_bytes: int = 1 << 30


@dataclass(frozen=True)
class ImageRoot:
    """The root of a container image, as the commands of one job see and change it.

    `path` is where it is mounted on the machine, `uid` and `gid` are the numbers that the command has inside.
    """

    path: Path
    uid: int
    gid: int
    home: str


@dataclass(frozen=True)
class RunSpec:
    """One command to run.

    `workspace` is the checkout, owned by `Engine.owner(slot)`; `Engine.mount_points` returns its name inside.
    `working_directory` is relative to it and may not leave it; with an image it may be a path inside of the image.
    """

    argv: tuple[str, ...]
    workspace: Path
    slot: int
    timeout_seconds: float
    keeps_home: bool = (
        False  # home and /tmp stay as the spec before left them, for the next one; the caller removes them
    )
    working_directory: str = "."
    environment: dict[str, str] = field(default_factory=dict)
    egress: EgressPolicy | None = None  # None: no network but loopback
    allow_exec: bool = True
    trace: TraceLevel = TraceLevel.FULL
    grace_seconds: float = 2.0  # between SIGTERM and SIGKILL
    limits: RunLimits = RunLimits()
    root: ImageRoot | None = None  # None: the machine's own system, read-only


@dataclass(frozen=True)
class MountPoints:
    """The paths under which the command sees its directories. The paths in the trace refer to them."""

    workspace: str = "/job"
    home: str = "/home/job"
    temporary: tuple[str, ...] = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # names inside, not files of ours


@dataclass(frozen=True)
class NetworkRecord:
    """One CONNECT that the egress proxy received. `verdict`: allowed, refused, unreachable."""

    name: str
    port: int
    verdict: str
    address: str | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class ResourceUsage:
    """Peaks of all processes of the job. None: this engine cannot measure it."""

    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class RunResult:
    """The end of a run, as facts.

    `kind`: `exited` (`exit_code` set), `signaled` (`signal` set, such as "SIGKILL"), `timeout`, `stopped` (by
    `StopSignal`), `not_found` (the command does not exist), `out_of_memory`, `too_many_processes`, `disk_full` (of
    bytes or inodes), `worker_disk_full` (the file system of the worker ran low, whatever the job's limit is).
    `exit_code` is set whenever the command returned one, whatever `kind` says.
    """

    kind: str
    exit_code: int | None = None
    signal: str | None = None
    started_at: float = 0.0  # Unix time by the worker's clock: for display, never for decisions
    finished_at: float = 0.0
    output_bytes: int = 0
    trace_bytes: int = 0
    trace_truncated: bool = False
    enforced_layers: tuple[str, ...] = ()
    tool_version: str = ""
    memory_kills: int = 0  # processes that were killed because the job had no memory left, whatever `kind` says
    resources: ResourceUsage = ResourceUsage()
    network: tuple[NetworkRecord, ...] = ()


@dataclass(frozen=True)
class EngineCapabilities:
    """The result of `Engine.check`. If `missing` is not empty, the worker must not claim with this engine."""

    offered: frozenset[str] = frozenset()  # "linux", "ptrace", "namespaces", "egress", "exec_control", …
    soft: tuple[str, ...] = ()  # limits enforced by polling or per process only, for an operator
    missing: tuple[str, ...] = ()  # why this engine cannot run here, for an operator


class StopSignal:
    """A switch that ends a running job: SIGTERM to its processes, grace, then SIGKILL.

    It also has a deadline, in seconds of CLOCK_BOOTTIME. The job is killed then, even while the worker's own process is
    stopped.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.immediate = threading.Event()
        self._deadline = math.inf
        self._on_extend: Callable[[float], None] = lambda _: None
        self._lock = threading.Lock()

    def extend(self, deadline: float) -> None:
        """Move the deadline; at first there is none."""
        with self._lock:
            self._deadline = deadline
            self._on_extend(deadline)

    def follow(self, on_extend: Callable[[float], None]) -> None:
        """Call `on_extend` with the deadline, now and each time it moves. Only one caller follows at a time."""
        with self._lock:
            self._on_extend = on_extend
            on_extend(self._deadline)

    def request(self, *, now: bool = False) -> None:
        """Request the stop; repeated calls change nothing. `now` skips the grace."""
        if now:
            self.immediate.set()
        self.requested.set()


class Engine(Protocol):
    """The interface of an engine. The docstring of this module has the order of calls and the promises."""

    name: str
    isolation: Isolation

    def reserved(self, slot: int) -> AbstractContextManager[None]:
        """Reserve the slot's uid on this machine while the context is entered. Raises EngineUnavailable."""
        ...

    def check(self) -> EngineCapabilities:
        """Test what this machine can enforce (under two seconds). A missing feature is a result, not an error."""
        ...

    def owner(self, slot: int) -> int | None:
        """Return the uid, and gid, that the workspace of this slot must belong to. None: the worker's own."""
        ...

    def directory(self, slot: int, folder: Path, limits: RunLimits) -> Path:
        """Return the directory in which the workspaces of this slot are made.

        Args:
            slot: The slot.
            folder: The worker's directory for jobs. It is returned where the machine has no volumes; else the root of
                the slot's volume, mounted in it.
            limits: The limits of the jobs.

        Raises:
            EngineUnavailable: The volume cannot be made.
        """
        ...

    def reset(self, slot: int) -> None:
        """Prepare the slot's directory for the next job, after the workspace was removed."""
        ...

    def shortage(self, folder: Path) -> str | None:
        """Return what the file system of this directory lacks for another job, for an operator, or None."""
        ...

    def mount_points(self, spec: RunSpec) -> MountPoints:
        """Return the paths that the trace will contain. They are known before `run`."""
        ...

    def run(
        self, spec: RunSpec, *, output: Sink, trace: Sink, stop: StopSignal, errors: Sink | None = None
    ) -> RunResult:
        """Run the command to its end.

        Args:
            spec: The command and its limits.
            output: Receives stdout and stderr, merged, as they come, all of it; with `errors` stdout only.
            trace: Receives the raw strace lines, whole lines with their newline, up to the limit. Where nothing
                is traced it is called once, with nothing, when the command starts. Both sinks are called from one
                thread at a time, and must not block long.
            stop: Ends the command early.
            errors: Receives stderr, from another thread than `output`.

        Raises:
            EngineUnavailable: The command was not started, and another machine may run it.
            SandboxFailed: The sandbox could not be started.
        """
        ...

    def clean(self, slots: Sequence[int]) -> None:
        """Remove what a killed worker left in these slots: processes, control groups, mounts."""
        ...
