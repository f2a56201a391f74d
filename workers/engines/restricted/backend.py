"""The launcher of one run without namespaces: its Landlock rules, its limits, and its fake sockets."""

from __future__ import annotations

import functools
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
from workers.engines.tracing.seccomp_notify import SyscallHandler

_OWN_TASKS = 8  # reaper, strace, and the threads that serve a run: they start after the count


@functools.cache
def _filter(*, allow_exec: bool) -> bytes:
    """Return the filter of the command."""
    rules = [] if allow_exec else seccomp.one_program_rules(PROGRAM_FD)
    rules += [*seccomp.no_network_rules(), *seccomp.no_shared_objects_rules()]
    rules += [*seccomp.process_control_rules(), *seccomp.common_rules()]
    return seccomp.program(rules)


class RestrictedBackend(SandboxBackend):
    """Runs the launcher without namespaces.

    The reaper is the first process of the sandbox and outside of its restrictions. The tracer is its only child, or the
    command itself where nothing is traced.
    """

    own_execs = 1  # the launcher
    layers: tuple[str, ...] = ("landlock", "no_new_privileges", "no_capabilities", "seccomp")

    def __init__(self, environment: RunEnvironment, *, version: str, abi: int, read_only: tuple[str, ...] = ()) -> None:
        super().__init__(environment, version=version, abi=abi, read_only=read_only)
        self.top = 0
        self.tracers: set[int] = set()
        self.fake_sockets: FakeSockets | None = None

    def launch_spec(self) -> LaunchSpec:
        environment, spec = self.environment, self.environment.spec
        return LaunchSpec(
            argv=spec.argv,
            directory=str(spec.workspace / environment.directory),
            environment=environment.variables(str(environment.home), str(environment.temporary)),
            filter=_filter(allow_exec=spec.allow_exec),
            one_program=not spec.allow_exec,
            own_session=True,
            limits=[] if environment.group else self._soft_limits(),
            landlock=landlock.shape(self.abi),
            paths=landlock.rules(self.abi, writable=environment.spaces, readable=self.read_only),
        )

    def _soft_limits(self) -> list[tuple[int, int, int]]:
        """Return limits that add to the tasks of the uid, which the kernel counts without a user namespace."""
        limits = self.environment.spec.limits
        uid = os.geteuid() if self.environment.uid is None else self.environment.uid
        tasks = limits.processes + processes.tasks_of_uid(uid) + _OWN_TASKS
        return [(RLIMIT_NPROC, tasks, tasks), (RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes)]

    def handlers(self, proxy: EgressProxy | None) -> dict[str, SyscallHandler]:
        self.fake_sockets = FakeSockets(proxy)
        controls = dict.fromkeys(seccomp.CONTROLS, seccomp_notify.control_own_process)
        return {"prctl": seccomp_notify.accept} | controls | self.fake_sockets.handlers()

    def started(self, top: subprocess.Popen[bytes]) -> None:
        self.top = top.pid

    def is_ready(self) -> bool:
        children = {process.pid for process in processes.all_processes() if process.parent == self.top}
        self.tracers = children if self.is_traced else set()
        return bool(children)

    def members(self) -> list[HostProcess]:
        return [process for process in processes.descendants(self.top) if process.pid not in self.tracers]

    def kill(self) -> None:
        """Close the lifeline: the reaper ends all processes below it, and then itself."""
        self.reaper.release()

    def close(self, top: subprocess.Popen[bytes]) -> int | None:
        self.kill()
        if self.fake_sockets:
            self.fake_sockets.close()
        return top.returncode
