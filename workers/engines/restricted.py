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

from workers.engines import cgroups, checks, landlock, launch, notices, processes, seccomp, volumes
from workers.engines.base import Capabilities, Ended, EngineUnavailable, Isolation, Limits, Order, Places, Sink, Stop
from workers.engines.dummies import Dummies
from workers.engines.egress import EgressProxy, WayOut
from workers.engines.inside import PROGRAM_FD, RLIMIT_DATA, RLIMIT_NPROC, Launcher, Orders
from workers.engines.keeper import Keeper
from workers.engines.meter import Reserve
from workers.engines.notices import Answer
from workers.engines.processes import Process
from workers.engines.sandbox import Sandbox
from workers.engines.site import Site
from workers.engines.slots import FIRST_UID, Slots, clean, group_name, require_volume, soft_limits
from workers.engines.volumes import Volumes

_OWN_PROCESSES = 1  # strace; the keeper stands outside of the limits
_OWN_TASKS = 8  # keeper, strace, and the threads that serve a run: they come after the count


class RestrictedBox:
    """A `Box`. The keeper, outside of everything, is the job's top; the tracer is its only child."""

    own_execs = 1  # the launcher
    layers: tuple[str, ...] = ("landlock", "no_new_privileges", "no_capabilities", "seccomp", "tracer_outside")

    def __init__(self, site: Site, *, version: str, abi: int, read_only: tuple[str, ...] = ()) -> None:
        self.site, self.version, self.abi, self.read_only = site, version, abi, read_only
        self.keeper, self.top = Keeper(site.uid), 0
        self.tracers: set[int] = set()
        self.dummies: Dummies | None = None
        self.layers += ("control_group",) if site.group else ("resource_limits",)
        self.layers += ("uid_of_its_own",) if site.uid is not None else ()
        self.layers += ("egress_proxy",) if site.order.egress else ("no_network",)
        self.layers += () if site.order.allow_exec else ("one_program",)

    def orders(self) -> Orders:
        site, order = self.site, self.site.order
        rules = seccomp.one_program_rules(PROGRAM_FD) if not order.allow_exec else []
        rules += [*seccomp.no_network_rules(), *seccomp.no_shared_objects_rules()]
        rules += [*seccomp.process_control_rules(), *seccomp.common_rules()]
        return Orders(
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
        self.dummies = Dummies(proxy)
        controls = dict.fromkeys(seccomp.CONTROLS, notices.control_own_process)
        return {"prctl": notices.accept} | controls | self.dummies.answers()

    def command(self, launcher: Launcher, fifo: Path) -> tuple[list[str], list[int]]:
        site, passed = self.site, list[int]()
        row = [
            *self.keeper.row(passed),
            *launch.joined(site.group.entrances() if site.group else ()),
            *launch.limited(site.order.limits),
            *launch.unprivileged(site.uid),
            *launch.traced(fifo),
            *launcher.command,
        ]
        return row, passed

    def started(self, top: subprocess.Popen[bytes]) -> None:
        self.top = top.pid

    def is_ready(self) -> bool:
        self.tracers = {process.pid for process in processes.everyone() if process.parent == self.top}
        return bool(self.tracers)

    def members(self) -> list[Process]:
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


class Restricted:
    """An `Engine`. `read_only` names further paths of the machine that jobs may read, such as a toolchain in /opt."""

    name = "restricted"
    isolation = Isolation.RESTRICTED

    def __init__(
        self,
        *,
        first_uid: int = FIRST_UID,
        read_only: Sequence[str] = (),
        way_out: WayOut | None = None,
        use_volumes: bool = True,
        reserve_bytes: int = Reserve.bytes,
        reserve_inodes: int = Reserve.inodes,
    ) -> None:
        self.volumes: Volumes | None = None  # until `check` has found that this machine has them
        self.use_volumes, self.reserve = use_volumes, Reserve(reserve_bytes, reserve_inodes)
        self.slots = Slots(first_uid)
        self.read_only = tuple(read_only)
        self.way_out = way_out or WayOut()
        self.hierarchy = cgroups.find() if os.geteuid() == 0 else None
        self.abi = landlock.version()

    def owner(self, slot: int) -> int | None:
        return self.slots.uid(slot)

    def directory(self, slot: int, folder: Path, limits: Limits) -> Path:
        return self.volumes.directory(slot, folder, limits) if self.volumes else folder

    def reset(self, slot: int) -> None:
        if self.volumes:
            self.volumes.reset(slot)

    def places(self, order: Order) -> Places:
        site = Site(order, None, None)
        shared = Places().temporary
        return Places(str(order.workspace), str(site.home), (str(site.temporary), *shared))

    def check(self) -> Capabilities:
        why_not = self._find_volumes()
        with self.slots.spare() as slot:
            subject = checks.Subject(
                self._run,
                self.owner,
                slot,
                self.directory,
                self.reset,
                has_init=False,
                scopes_signals=self.abi >= landlock.SCOPES_SINCE,
            )
            missing = checks.all_of(
                self.requirements,
                lambda: checks.attack(subject),
                lambda: checks.overdraw(subject),
                lambda: checks.fill_disk(subject),
            )
        offered = frozenset({"linux", "ptrace", "egress", "exec_control"})
        return Capabilities(offered, soft_limits(self.hierarchy, why_not), missing)

    def _find_volumes(self) -> str:
        """Returns why there are none, in words for an operator."""
        if self.volumes:
            return ""
        self.volumes, why_not = volumes.find() if self.use_volumes else (None, "switched off")
        return why_not

    def requirements(self) -> list[str]:
        """What is not installed or not this machine's way."""
        found = launch.lacking()
        if not self.abi:
            found.append("this kernel has no Landlock (Linux 5.13, and switched on)")
        elif self.abi < landlock.SCOPES_SINCE and os.geteuid() != 0:
            found.append(
                "this kernel's Landlock lets a job signal its user's other processes: start the worker as root"
            )
        return found

    def run(self, order: Order, *, output: Sink, trace: Sink, stop: Stop) -> Ended:
        if lacking := self.requirements():
            raise EngineUnavailable("; ".join(lacking))
        require_volume(self.volumes, order)
        with self.slots.taken(order.slot):
            return self._run(order, output, trace, stop)

    def _run(self, order: Order, output: Sink, trace: Sink, stop: Stop) -> Ended:
        uid = self.owner(order.slot)
        group = self.hierarchy.group(group_name(uid), extra=_OWN_PROCESSES) if self.hierarchy else None
        with Site(order, uid, group, self.way_out, self.volumes, self.reserve.of(order.slot)) as site:
            box = RestrictedBox(site, version=launch.versions(), abi=self.abi, read_only=self.read_only)
            return Sandbox(site, box, output, trace).run(stop)

    def clean(self, slots: Sequence[int]) -> None:
        clean(self.slots, slots, self.hierarchy)
        if self.volumes:
            self.volumes.close(slots)
