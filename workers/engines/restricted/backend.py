"""The launcher for one run without namespaces: its Landlock rules, its limits, and its fake sockets."""

from __future__ import annotations

import os
import subprocess

from workers.engines import landlock, seccomp
from workers.engines.network.egress import EgressProxy
from workers.engines.network.fake_sockets import FakeSockets
from workers.engines.sandbox import processes
from workers.engines.sandbox.backend import SandboxBackend
from workers.engines.sandbox.launcher import PROGRAM_FD, RLIMIT_DATA, RLIMIT_NPROC, LaunchSpec
from workers.engines.sandbox.processes import HostProcess
from workers.engines.sandbox.run_dirs import RunEnvironment
from workers.engines.tracing import seccomp_notify
from workers.engines.tracing.seccomp_notify import Answer

_OWN_TASKS = 8  # keeper, strace, and the threads that serve a run: they come after the count


class RestrictedBackend(SandboxBackend):
    """Runs the launcher without namespaces.

    The reaper is the first process of the sandbox and outside of its restrictions; the tracer is its only child.
    """

    own_execs = 1  # the launcher
    layers: tuple[str, ...] = ("landlock", "no_new_privileges", "no_capabilities", "seccomp", "tracer_outside")

    def __init__(self, site: RunEnvironment, *, version: str, abi: int, read_only: tuple[str, ...] = ()) -> None:
        super().__init__(site, version=version, abi=abi, read_only=read_only)
        self.top = 0
        self.tracers: set[int] = set()
        self.dummies: FakeSockets | None = None

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
