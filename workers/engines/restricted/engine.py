"""For machines that forbid user namespaces: Landlock, seccomp without network sockets, limits, and the tracer.

What it keeps: no file outside the system's directories, the checkout, a home and a temporary directory of the job; no
network but the egress proxy; no call of the common list; no process of another can be signalled, traced or read; no
process outlives the job. What it does not: the job sees the machine's own paths, users and host name; the names and
attributes (not the contents) of files anywhere can be asked for and, as an ordinary user, changed where the user may.
Its processes cannot speak with each other but through pipes and socket pairs: no loopback, no named socket, no shared
memory with a name. Before Linux 6.12 a job can kill its own tracer, and ends with it. A program that its owner may not
read (mode 0111) is traced without its names: the tracer has no capability here. The checkout's own path is the
machine's, and cannot be hidden. It is for repositories that one trusts; a pool or job has to ask for it by name.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from workers.engines import landlock, seccomp
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
)
from workers.engines.limits import cgroups, volumes
from workers.engines.limits.resource_monitor import Reserve
from workers.engines.limits.volumes import Volumes
from workers.engines.network.egress import EgressProxy, EgressResolver
from workers.engines.network.fake_sockets import FakeSockets
from workers.engines.sandbox import command as sandbox_command
from workers.engines.sandbox import processes, self_test
from workers.engines.sandbox.launcher import PROGRAM_FD, RLIMIT_DATA, RLIMIT_NPROC, Launcher, LaunchSpec
from workers.engines.sandbox.processes import HostProcess
from workers.engines.sandbox.reaper import Reaper
from workers.engines.sandbox.run import SandboxRun
from workers.engines.sandbox.run_dirs import RunEnvironment
from workers.engines.sandbox.uid_slots import FIRST_UID, UidSlots, clean, group_name, require_volume, soft_limits
from workers.engines.tracing import seccomp_notify
from workers.engines.tracing.seccomp_notify import Answer

_OWN_PROCESSES = 1  # strace; the keeper stands outside of the limits
_OWN_TASKS = 8  # keeper, strace, and the threads that serve a run: they come after the count


class RestrictedBackend:
    """A `Box`. The keeper, outside of everything, is the job's top; the tracer is its only child."""

    own_execs = 1  # the launcher
    layers: tuple[str, ...] = ("landlock", "no_new_privileges", "no_capabilities", "seccomp", "tracer_outside")

    def __init__(self, site: RunEnvironment, *, version: str, abi: int, read_only: tuple[str, ...] = ()) -> None:
        self.site, self.version, self.abi, self.read_only = site, version, abi, read_only
        self.keeper, self.top = Reaper(site.uid), 0
        self.tracers: set[int] = set()
        self.dummies: FakeSockets | None = None
        self.layers += ("control_group",) if site.group else ("resource_limits",)
        self.layers += ("uid_of_its_own",) if site.uid is not None else ()
        self.layers += ("egress_proxy",) if site.order.egress else ("no_network",)
        self.layers += () if site.order.allow_exec else ("one_program",)

    def orders(self) -> LaunchSpec:
        site, order = self.site, self.site.order
        rules = seccomp.one_program_rules(PROGRAM_FD) if not order.allow_exec else []
        rules += [*seccomp.no_network_rules(), *seccomp.no_shared_objects_rules()]
        rules += [*seccomp.process_control_rules(), *seccomp.common_rules()]
        return LaunchSpec(
            argv=order.argv,
            directory=str(order.workspace / site.directory),
            environment=site.environment(str(site.home), str(site.temporary)),
            filter=seccomp.program(rules),
            one_program=not order.allow_exec,
            own_session=True,
            limits=[] if site.group else self._soft_limits(),
            landlock=landlock.shape(self.abi),
            paths=landlock.rules(self.abi, writable=site.spaces, readable=self.read_only),
        )

    def _soft_limits(self) -> list[tuple[int, int, int]]:
        """Without a user namespace the kernel counts all tasks of the uid: what is there already comes on top."""
        limits = self.site.order.limits
        uid = os.geteuid() if self.site.uid is None else self.site.uid
        tasks = limits.processes + processes.tasks_of_uid(uid) + _OWN_TASKS
        return [(RLIMIT_NPROC, tasks, tasks), (RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes)]

    def answers(self, proxy: EgressProxy | None) -> dict[str, Answer]:
        self.dummies = FakeSockets(proxy)
        controls = dict.fromkeys(seccomp.CONTROLS, seccomp_notify.control_own_process)
        return {"prctl": seccomp_notify.accept} | controls | self.dummies.answers()

    def command(self, launcher: Launcher, fifo: Path) -> tuple[list[str], list[int]]:
        site, passed = self.site, list[int]()
        row = [
            *self.keeper.row(passed),
            *sandbox_command.with_cgroup(site.group.entrances() if site.group else ()),
            *sandbox_command.with_limits(site.order.limits),
            *sandbox_command.drop_privileges(site.uid),
            *sandbox_command.with_strace(fifo),
            *launcher.command,
        ]
        return row, passed

    def started(self, top: subprocess.Popen[bytes]) -> None:
        self.top = top.pid

    def is_ready(self) -> bool:
        self.tracers = {process.pid for process in processes.all_processes() if process.parent == self.top}
        return bool(self.tracers)

    def members(self) -> list[HostProcess]:
        return [process for process in processes.descendants(self.top) if process.pid not in self.tracers]

    def kill(self) -> None:
        """The keeper ends everything below it, and then itself."""
        self.keeper.let_go()

    def close(self, top: subprocess.Popen[bytes]) -> int | None:
        self.kill()
        if self.dummies:
            self.dummies.close()
        code = top.returncode
        return code if code >= 0 else 128 - code


class RestrictedEngine:
    """An `Engine`. `read_only` names further paths of the machine that jobs may read, such as a toolchain in /opt."""

    name = "restricted"
    isolation = Isolation.RESTRICTED

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

    def places(self, order: RunSpec) -> MountPoints:
        site = RunEnvironment(order, None, None)
        shared = MountPoints().temporary
        return MountPoints(str(order.workspace), str(site.home), (str(site.temporary), *shared))

    def check(self) -> EngineCapabilities:
        why_not = self._find_volumes()
        with self.slots.spare() as slot:
            subject = self_test.EngineUnderTest(
                self._run,
                self.owner,
                slot,
                self.directory,
                self.reset,
                has_init=False,
                scopes_signals=self.abi >= landlock.SCOPES_SINCE,
            )
            missing = self_test.run_checks(
                self.requirements,
                lambda: self_test.check_isolation(subject),
                lambda: self_test.check_limits(subject),
                lambda: self_test.fill_disk(subject),
            )
        offered = frozenset({"linux", "ptrace", "egress", "exec_control"})
        return EngineCapabilities(offered, soft_limits(self.hierarchy, why_not), missing)

    def _find_volumes(self) -> str:
        """Returns why there are none, in words for an operator."""
        if self.volumes:
            return ""
        self.volumes, why_not = volumes.find() if self.use_volumes else (None, "switched off")
        return why_not

    def requirements(self) -> list[str]:
        """What is not installed or not this machine's way."""
        found = sandbox_command.missing_tools()
        if not self.abi:
            found.append("this kernel has no Landlock (Linux 5.13, and switched on)")
        elif self.abi < landlock.SCOPES_SINCE and os.geteuid() != 0:
            found.append(
                "this kernel's Landlock lets a job signal its user's other processes: start the worker as root"
            )
        return found

    def run(self, order: RunSpec, *, output: Sink, trace: Sink, stop: StopSignal) -> RunResult:
        if lacking := self.requirements():
            raise EngineUnavailable("; ".join(lacking))
        require_volume(self.volumes, order)
        with self.slots.taken(order.slot):
            return self._run(order, output, trace, stop)

    def _run(self, order: RunSpec, output: Sink, trace: Sink, stop: StopSignal) -> RunResult:
        uid = self.owner(order.slot)
        group = self.hierarchy.group(group_name(uid), extra=_OWN_PROCESSES) if self.hierarchy else None
        with RunEnvironment(order, uid, group, self.way_out, self.volumes, self.reserve.of(order.slot)) as site:
            box = RestrictedBackend(site, version=sandbox_command.versions(), abi=self.abi, read_only=self.read_only)
            return SandboxRun(site, box, output, trace).run(stop)

    def clean(self, slots: Sequence[int]) -> None:
        clean(self.slots, slots, self.hierarchy)
        if self.volumes:
            self.volumes.close(slots)
