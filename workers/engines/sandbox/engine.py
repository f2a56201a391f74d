"""The base class of the engines that isolate: slots, control groups, volumes, the self-test, and the order of a run."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from workers.engines import landlock
from workers.engines.contract import (
    EngineCapabilities,
    EngineUnavailable,
    Isolation,
    MountPoints,
    RunLimits,
    RunResult,
    RunSpec,
    Sink,
    StopSignal,
    TraceLevel,
)
from workers.engines.limits import cgroups, volumes
from workers.engines.limits.reserve import FreeSpace, Reserve
from workers.engines.limits.volumes import Volumes
from workers.engines.network.egress import EgressResolver
from workers.engines.sandbox import command, self_test
from workers.engines.sandbox.backend import SandboxBackend
from workers.engines.sandbox.run import SandboxRun
from workers.engines.sandbox.run_dirs import RunEnvironment
from workers.engines.sandbox.uid_slots import FIRST_UID, UidSlots


class SandboxEngine(abc.ABC):
    """Implements `contract.Engine` but for the sandbox, which a subclass adds."""

    name: str
    isolation: Isolation
    offered: frozenset[str]  # capabilities
    own_processes: int  # of the sandbox itself, inside of the control group
    has_init = False  # each job has a pid 1 of its own
    programs: tuple[str, ...] = ()  # that make the sandbox

    def __init__(
        self,
        *,
        first_uid: int = FIRST_UID,
        read_only: Sequence[str] = (),
        resolver: EgressResolver | None = None,
        use_volumes: bool = True,
        reserve_bytes: int = Reserve.bytes,
        reserve_inodes: int = Reserve.inodes,
    ) -> None:
        """Configure the engine; nothing is started or changed on the machine.

        Args:
            first_uid: The uid of slot 0 where the worker is root.
            read_only: Further paths of the machine that jobs may read, such as a toolchain in /opt.
            resolver: How the egress proxy resolves names; only tests set it.
            use_volumes: Whether each slot gets a file system of its own, where the machine can.
            reserve_bytes: What the worker's file system keeps free.
            reserve_inodes: The same in inodes.
        """
        self.volumes: Volumes | None = None  # until `check` has found that this machine has them
        self.use_volumes, self.reserve = use_volumes, Reserve(reserve_bytes, reserve_inodes)
        self.slots = UidSlots(first_uid)
        self.read_only = tuple(read_only)
        self.resolver = resolver or EgressResolver()
        self.hierarchy = cgroups.find() if os.geteuid() == 0 else None
        self.abi = landlock.version()

    @abc.abstractmethod
    def mount_points(self, spec: RunSpec) -> MountPoints:
        """Return the paths under which the command sees its directories."""

    @abc.abstractmethod
    def requirements(self) -> list[str]:
        """Return what this machine lacks, for an operator; empty if nothing."""

    @abc.abstractmethod
    def backend(self, environment: RunEnvironment) -> SandboxBackend:
        """Return the sandbox of one run."""

    def check_further(self, slot: int) -> list[str]:  # noqa: ARG002  # for engines that have more to test
        """Return what the engine's own self-tests have found."""
        return []

    def reserved(self, slot: int) -> contextlib.AbstractContextManager[None]:
        return self.slots.reserved(slot)

    def owner(self, slot: int) -> int | None:
        return self.slots.uid(slot)

    def directory(self, slot: int, folder: Path, limits: RunLimits) -> Path:
        return self.volumes.directory(slot, folder, limits) if self.volumes else folder

    def reset(self, slot: int) -> None:
        if self.volumes:
            self.volumes.reset(slot)

    def shortage(self, folder: Path) -> str | None:
        unwritten_bytes = self.volumes.unwritten_bytes() if self.volumes else 0
        return self.reserve.shortage(FreeSpace.of(os.statvfs(folder), unwritten_bytes))

    def check(self) -> EngineCapabilities:
        why_not = self._find_volumes()
        with self.slots.spare() as slot:
            subject = self_test.EngineUnderTest(
                self._run,
                self.owner,
                slot,
                self.directory,
                self._close_volume,
                has_init=self.has_init,
                scopes_signals=self.abi >= landlock.SCOPES_SINCE,
            )
            missing = self_test.run_checks(
                self.requirements,
                lambda: self_test.check_isolation(subject),
                lambda: self_test.check_limits(subject),
                lambda: self_test.check_disk_limits(subject),
                lambda: self.check_further(slot),
            )
        return EngineCapabilities(self.offered, self._soft_limits(why_not), missing)

    def run(
        self, spec: RunSpec, *, output: Sink, trace: Sink, stop: StopSignal, errors: Sink | None = None
    ) -> RunResult:
        if self.volumes and self.volumes.of(spec.workspace) is None:
            raise EngineUnavailable(f"{spec.workspace.name} is in no volume: make it in the slot's `directory`")
        with self.slots.running(spec.slot):
            return self._run(spec, output, trace, stop, errors)

    def clean(self, slots: Sequence[int]) -> None:
        self.slots.clean(slots, self.hierarchy)
        if self.volumes:
            self.volumes.close(slots)

    def version(self, spec: RunSpec) -> str:
        """Return the programs that make the sandbox and the trace, with their versions."""
        return command.versions(*self.programs, *(() if spec.trace is TraceLevel.NONE else ("strace",)))

    def run_environment(self, spec: RunSpec) -> RunEnvironment:
        """Return what one run has to itself; it is made when it is entered."""
        uid = self.owner(spec.slot)
        own_processes = self.own_processes - (spec.trace is TraceLevel.NONE)
        group = self.hierarchy.group(uid, extra=own_processes) if self.hierarchy else None
        return RunEnvironment(spec, uid, group, self.resolver, self.volumes, self.reserve.of(spec.slot))

    def _run(self, spec: RunSpec, output: Sink, trace: Sink, stop: StopSignal, errors: Sink | None = None) -> RunResult:
        with self.run_environment(spec) as environment:
            return SandboxRun(environment, self.backend(environment), output, trace, errors).run(stop)

    def _close_volume(self, slot: int) -> None:
        if self.volumes:
            self.volumes.close([slot])

    def _find_volumes(self) -> str:
        """Find the volumes once. Returns why there are none, for an operator."""
        if self.volumes:
            return ""
        self.volumes, why_not = volumes.find() if self.use_volumes else (None, "switched off")
        return why_not

    def _soft_limits(self, no_volumes: str) -> tuple[str, ...]:
        """Return the limits that only measurements at intervals hold, for an operator."""
        disk = (
            "disk: single files by the kernel, the whole job by measuring it about once a second, so that a job may "
            f"pass its limit for the time of a measurement (no volumes: {no_volumes})"
        )
        disk_limit = (disk,) if no_volumes else ()
        if self.hierarchy:
            return disk_limit
        return (
            *disk_limit,
            "memory: single processes by the kernel, the whole job by measuring it ten times a second",
            "processes: by the kernel, but a job that hits the limit is reported as one that fails",
            "cpu: not limited",
        )
