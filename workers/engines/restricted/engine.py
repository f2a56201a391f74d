"""The engine without user namespaces: Landlock, seccomp without network sockets, limits, and the tracer.

It is for machines that forbid user namespaces.

Protected: no file outside of the system's directories, the checkout, a home and a temporary directory of the job; no
network but the egress proxy; no call of the common list; no process of another job or of the worker can be signalled,
traced or read; no process outlives the job.

Not protected: the job sees the machine's own paths, users and host name. The names and attributes (not the contents) of
files anywhere can be read and, as an ordinary user, changed where the user may. The processes of a job communicate by
pipes and socket pairs only: no loopback, no named socket, no shared memory with a name. Before Linux 6.12 a job can
kill its own tracer, and ends with it. A program that its owner may not read (mode 0111) is traced without its names,
because the tracer has no capability here. The checkout's path is the machine's, and cannot be hidden.

Use it for trusted repositories; a pool or a job has to request it by name.
"""

from __future__ import annotations

import os

from workers.engines import landlock
from workers.engines.contract import (
    EngineUnavailable,
    Isolation,
    MountPoints,
    RunResult,
    RunSpec,
    Sink,
    StopSignal,
)
from workers.engines.restricted.backend import RestrictedBackend
from workers.engines.sandbox import command as sandbox_command
from workers.engines.sandbox.engine import SandboxEngine
from workers.engines.sandbox.run_dirs import RunEnvironment


class RestrictedEngine(SandboxEngine):
    """Runs commands without namespaces."""

    name = "restricted"
    isolation = Isolation.RESTRICTED
    offered = frozenset({"linux", "ptrace", "egress", "exec_control"})
    own_processes = 1  # strace; the reaper is outside of the limits

    def mount_points(self, spec: RunSpec) -> MountPoints:
        environment = RunEnvironment(spec, None, None)
        shared = MountPoints().temporary
        return MountPoints(str(spec.workspace), str(environment.home), (str(environment.temporary), *shared))

    def run(
        self, spec: RunSpec, *, output: Sink, trace: Sink, stop: StopSignal, errors: Sink | None = None
    ) -> RunResult:
        if missing := self.requirements():
            raise EngineUnavailable("; ".join(missing))
        return super().run(spec, output=output, trace=trace, stop=stop, errors=errors)

    def requirements(self) -> list[str]:
        found = sandbox_command.missing_tools()
        if not self.abi:
            found.append("this kernel has no Landlock (Linux 5.13, and switched on)")
        elif self.abi < landlock.SCOPES_SINCE and os.geteuid() != 0:
            found.append(
                "this kernel's Landlock lets a job signal its user's other processes: start the worker as root"
            )
        return found

    def backend(self, environment: RunEnvironment) -> RestrictedBackend:
        version = self.version(environment.spec)
        return RestrictedBackend(environment, version=version, abi=self.abi, read_only=self.read_only)
