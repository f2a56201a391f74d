"""The default engine: bubblewrap with every namespace there is, and strace outside of it.

bwrap never runs as root: started as root, the worker gives each slot a uid of its own first. The command sees a
read-only system, its checkout at /job, and a home (/home/job) and /tmp of its own, which lie on disk beside the
checkout. The home is not the checkout, so that what a command looks for under ~ is told from what it brought along;
it is empty, and every look is in the trace. Nothing else of the machine is there, and no mount is listed.

Pid 1 inside is the launcher: it has the job's uid, and three protections of which each is enough. It is not dumpable,
it is outside of the Landlock domain of the command, and its own filter kills the sandbox at any call but a few.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from workers.engines import landlock
from workers.engines.bubblewrap import backend
from workers.engines.bubblewrap.backend import BubblewrapBackend
from workers.engines.contract import (
    EngineCapabilities,
    Isolation,
    MountPoints,
    RunLimits,
    RunResult,
    RunSpec,
    Sink,
    StopSignal,
)
from workers.engines.limits import cgroups, volumes
from workers.engines.limits.resource_monitor import Reserve
from workers.engines.limits.volumes import Volumes
from workers.engines.network.egress import EgressResolver
from workers.engines.sandbox import command as sandbox_command
from workers.engines.sandbox import self_test
from workers.engines.sandbox.run import SandboxRun
from workers.engines.sandbox.run_dirs import RunEnvironment
from workers.engines.sandbox.uid_slots import FIRST_UID, UidSlots, clean, group_name, require_volume, soft_limits

_OWN_PROCESSES = 3  # strace, bwrap outside, and pid 1 inside


class BubblewrapEngine:
    """An `Engine`. `read_only` names further paths of the machine that jobs may read, such as a toolchain in /opt."""

    name = "bubblewrap"
    isolation = Isolation.NAMESPACES

    def __init__(
        self,
        *,
        first_uid: int = FIRST_UID,
        read_only: Sequence[str] = (),
        way_out: EgressResolver | None = None,
        use_volumes: bool = True,
        reserve_bytes: int = Reserve.bytes,
        reserve_inodes: int = Reserve.inodes,
    ) -> None:
        self.volumes: Volumes | None = None  # until `check` has found that this machine has them
        self.use_volumes, self.reserve = use_volumes, Reserve(reserve_bytes, reserve_inodes)
        self.slots = UidSlots(first_uid)
        self.read_only = tuple(read_only)
        self.way_out = way_out or EgressResolver()
        self.hierarchy = cgroups.find() if os.geteuid() == 0 else None
        self.abi = landlock.version()

    def owner(self, slot: int) -> int | None:
        return self.slots.uid(slot)

    def directory(self, slot: int, folder: Path, limits: RunLimits) -> Path:
        return self.volumes.directory(slot, folder, limits) if self.volumes else folder

    def reset(self, slot: int) -> None:
        if self.volumes:
            self.volumes.reset(slot)

    def places(self, order: RunSpec) -> MountPoints:  # noqa: ARG002  # the same for all
        return MountPoints(backend.WORKSPACE, backend.HOME)

    def check(self) -> EngineCapabilities:
        why_not = self._find_volumes()
        with self.slots.spare() as slot:
            subject = self_test.EngineUnderTest(
                self._run,
                self.owner,
                slot,
                self.directory,
                self.reset,
                has_init=True,
                scopes_signals=self.abi >= landlock.SCOPES_SINCE,
            )
            missing = self_test.run_checks(
                self.requirements,
                lambda: self_test.check_isolation(subject),
                lambda: self_test.check_limits(subject),
                lambda: self_test.fill_disk(subject),
                lambda: self._survive(slot),
            )
        offered = frozenset({"linux", "ptrace", "namespaces", "egress", "exec_control"})
        return EngineCapabilities(offered, soft_limits(self.hierarchy, why_not), missing)

    def _find_volumes(self) -> str:
        """Returns why there are none, in words for an operator."""
        if self.volumes:
            return ""
        self.volumes, why_not = volumes.find() if self.use_volumes else (None, "switched off")
        return why_not

    def requirements(self) -> list[str]:
        """What is not installed or not this machine's way."""
        found = sandbox_command.missing_tools("bwrap")
        if not found and "--bind-fd" not in (said := _help()):
            missing = "is too old: it has no --bind-fd" if "--bind" in said else f"does not run: {said.strip()[-200:]}"
            found.append(f"this bubblewrap {missing}")
        return found

    def run(self, order: RunSpec, *, output: Sink, trace: Sink, stop: StopSignal) -> RunResult:
        require_volume(self.volumes, order)
        with self.slots.taken(order.slot):
            return self._run(order, output, trace, stop)

    def _run(self, order: RunSpec, output: Sink, trace: Sink, stop: StopSignal) -> RunResult:
        with self._site(order) as site:
            return SandboxRun(site, self._box(site), output, trace).run(stop)

    def _site(self, order: RunSpec) -> RunEnvironment:
        uid = self.owner(order.slot)
        group = self.hierarchy.group(group_name(uid), extra=_OWN_PROCESSES) if self.hierarchy else None
        return RunEnvironment(order, uid, group, self.way_out, self.volumes, self.reserve.of(order.slot))

    def _box(self, site: RunEnvironment) -> BubblewrapBackend:
        version = sandbox_command.versions("bwrap")
        return BubblewrapBackend(
            site, version=version, abi=self.abi, read_only=self.read_only, cpu=_processor(site.order)
        )

    def _survive(self, slot: int) -> list[str]:
        with self_test.workspace(self.owner(slot)) as place:
            order = RunSpec(argv=("true",), workspace=place, slot=slot, timeout_seconds=1)
            with self._site(order) as site:
                return self_test.check_parent_death(site, self._box(site))

    def clean(self, slots: Sequence[int]) -> None:
        clean(self.slots, slots, self.hierarchy)
        if self.volumes:
            self.volumes.close(slots)


def _help() -> str:
    command = [*sandbox_command.drop_privileges(None), sandbox_command.tool_path("bwrap"), "--help"]
    done = subprocess.run(command, env={}, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


def _processor(order: RunSpec) -> int | None:
    """Tracer and traced share one processor, unless the job may use more than one."""
    if order.limits.cpu_percent > 100:
        return None
    usable = sorted(os.sched_getaffinity(0))
    return usable[order.slot % len(usable)]
