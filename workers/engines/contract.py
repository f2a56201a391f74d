"""The engine contract: what runs a command in isolation, and what it must promise.

A stranger can write an engine from this file alone.

Order of calls. `reserved()` for each slot, for the life of the worker. `check()` once, at the worker's start, in the
worker's own process and in the thread that later starts the jobs' threads: it tries what this machine can enforce, and
may move them into a mount namespace. `clean()` next, for what an earlier process of the worker left. `directory()`
before each job, for its workspace; `reset()` after its workspace was removed.
`run()` once per job, from a thread that lives as long as the job; several may run at the same time in different slots.
`StopSignal.request()` may come from any thread, at any time, also before `run` began and after it ended.

The workspace. The caller makes it in `directory(slot, ...)`, which may be a file system of its own, gives it to
`owner(slot)` (nothing to do where that is None), and sees to it that this uid can reach it: every directory above it
lets others pass (mode 0711 is enough) and belongs to the worker. The engine makes a second directory beside it,
`<workspace>.private` (home, /tmp, the trace), and removes it at the end, unless the order says that more of the same
job are to come; a worker that was killed leaves it behind, so whoever wipes the workspace wipes that too.

Promises. `run` returns only when no process of the job lives. It never runs the command with less isolation than
`Engine.isolation` says, nor with fewer limits than `check` found: what cannot be enforced raises `EngineUnavailable`
before the command has started. When the worker dies by SIGKILL, the whole tree of the job dies within a second.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

Sink = Callable[[bytes], None]

SPARE = range(160, 184)  # slots of the checks at a worker's start; uid 61184 and above are systemd's


class Isolation(enum.StrEnum):
    """How well a job is kept apart, weakest first. A pool or a job states the least that it accepts."""

    NONE = "none"
    RESTRICTED = "restricted"
    NAMESPACES = "namespaces"

    @property
    def rank(self) -> int:
        return list(Isolation).index(self)

    def satisfies(self, least: Isolation) -> bool:
        return self.rank >= least.rank


class EngineUnavailable(Exception):
    """This machine cannot run the job as asked; another may. The command has not started: release, do not fail."""


class SandboxFailed(Exception):
    """The sandbox was asked to start and did not (`sandbox_apply_failed`). `str()` is its scrubbed last words."""


@dataclass(frozen=True)
class RunLimits:
    """What one job may use. An engine that cannot hold one of them says so in `Capabilities.soft`."""

    memory_bytes: int = 2 << 30
    processes: int = 256
    cpu_percent: int = 100
    disk_bytes: int = 4 << 30
    output_bytes: int = 16 << 20
    trace_bytes: int = 256 << 20
    inodes: int = 1 << 20  # files, directories and links of the checkout, the home and /tmp together

    @property
    def max_inodes(self) -> int:
        """Of a small disk, one inode per 4 KiB: an empty file counts as one block."""
        return max(min(self.inodes, self.disk_bytes // 4096), 256)


@dataclass(frozen=True)
class EgressPolicy:
    """Where a job with network may go: host names, `*.suffix` or `host:port` (port 443 unless named)."""

    allow: tuple[str, ...]
    max_bytes: int = 1 << 30


@dataclass(frozen=True)
class RunSpec:
    """One command to run. `workspace` is the checkout, owned by `Engine.owner(slot)`; see `Engine.places` for its name
    inside. `working_directory` is relative to it and may not leave it.
    """

    argv: tuple[str, ...]
    workspace: Path
    slot: int
    timeout_seconds: float
    keeps_home: bool = False  # home and /tmp as the order before left them, and left for the next; the caller wipes
    working_directory: str = "."
    environment: dict[str, str] = field(default_factory=dict)
    egress: EgressPolicy | None = None  # None: no network but loopback
    allow_exec: bool = True
    grace_seconds: float = 2.0  # between SIGTERM and SIGKILL
    limits: RunLimits = RunLimits()


@dataclass(frozen=True)
class MountPoints:
    """Under which names the command sees its directories: what the paths in the trace refer to."""

    workspace: str = "/job"
    home: str = "/home/job"
    temporary: tuple[str, ...] = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # names inside, not files of ours


@dataclass(frozen=True)
class NetworkRecord:
    """One CONNECT that the egress proxy saw. `verdict`: allowed, refused, unreachable."""

    name: str
    port: int
    verdict: str
    address: str | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class ResourceUsage:
    """Peaks of the whole tree. None: this engine cannot measure it."""

    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class RunResult:
    """How it ended: data, not an opinion.

    `kind`: `exited` (`exit_code` set), `signaled` (`signal` set, such as "SIGKILL"), `timeout`, `stopped` (by `Stop`),
    `not_found` (the command does not exist), `out_of_memory`, `too_many_processes`, `disk_full` (of bytes or inodes),
    `worker_disk_full` (the file system of the worker ran low, whatever the job's limit is).
    `exit_code` is set whenever the command returned one, whatever `kind` says.
    """

    kind: str
    exit_code: int | None = None
    signal: str | None = None
    started_at: float = 0.0  # Unix time, of the worker's clock: for people, never for decisions
    finished_at: float = 0.0
    output_bytes: int = 0  # true total; what went to the sink is capped by Limits.output_bytes
    output_truncated: bool = False
    trace_bytes: int = 0
    trace_truncated: bool = False
    enforced_layers: tuple[str, ...] = ()
    tool_version: str = ""
    resources: ResourceUsage = ResourceUsage()
    network: tuple[NetworkRecord, ...] = ()


@dataclass(frozen=True)
class EngineCapabilities:
    """What `check` found. `missing` is not empty: the worker must not claim with this engine."""

    offered: frozenset[str] = frozenset()  # "linux", "ptrace", "namespaces", "egress", "exec_control", …
    soft: tuple[str, ...] = ()  # limits held by polling or per process only, in words for an operator
    missing: tuple[str, ...] = ()  # why this engine cannot run here, in words for an operator


class StopSignal:
    """A switch that ends a running job: SIGTERM to the tree, grace, then SIGKILL. Asking twice changes nothing.

    `ask(now=True)` skips the grace.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.immediate = threading.Event()

    def request(self, *, now: bool = False) -> None:
        if now:
            self.immediate.set()
        self.requested.set()


class Engine(Protocol):
    """See the module's docstring for the order of calls and the promises."""

    name: str
    isolation: Isolation

    def reserved(self, slot: int) -> AbstractContextManager[None]:
        """Reserve the slot's uid on this machine while the context is entered. Raises EngineUnavailable."""
        ...

    def check(self) -> EngineCapabilities:
        """Try what this machine can enforce (under two seconds). Never raises for what is only missing."""
        ...

    def owner(self, slot: int) -> int | None:
        """The uid, and gid, that the workspace of this slot must belong to. None: the worker's own, nothing to do."""
        ...

    def directory(self, slot: int, folder: Path, limits: RunLimits) -> Path:
        """Returns where the workspaces of this slot are made: the root of its volume in `folder`, or `folder` itself
        where the kernel has no volumes. Raises EngineUnavailable.
        """
        ...

    def reset(self, slot: int) -> None:
        """Prepare the slot's directory for the next job, once the workspace was removed."""
        ...

    def mount_points(self, spec: RunSpec) -> MountPoints:
        """Known before `run`, so that a trace can be read while it comes."""
        ...

    def run(self, spec: RunSpec, *, output: Sink, trace: Sink, stop: StopSignal) -> RunResult:
        """Run to the end. `output` gets the merged stdout and stderr as it comes, `trace` the raw strace lines
        (whole lines, newline kept), both capped, both called from one thread at a time, both must not block long.
        Raises EngineUnavailable, SandboxFailed.
        """
        ...

    def clean(self, slots: Sequence[int]) -> None:
        """Remove what an earlier life left behind in these slots: processes, cgroups, mounts, FIFOs."""
        ...
