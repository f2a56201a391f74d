"""The default engine: bubblewrap with every namespace there is, and strace outside of it.

bwrap never runs as root: a worker that is root gives each slot a uid of its own first. The command has a read-only
system, its checkout at /job, and a home (/home/job) and /tmp of its own, which are on disk beside the checkout. The
home is not the checkout, so that access to ~ is distinct from access to the checkout. The home is empty, and every
access is in the trace. Nothing else of the machine is visible, and no mount is listed.

Pid 1 inside is the launcher. It has the job's uid, and three protections of which each is sufficient: it is not
dumpable, it is outside of the Landlock domain of the command, and its own filter kills the sandbox at any call but a
few.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from workers.engines.bubblewrap import backend
from workers.engines.bubblewrap.backend import BubblewrapBackend
from workers.engines.contract import Isolation, MountPoints, RunSpec, TraceLevel
from workers.engines.sandbox import command as sandbox_command
from workers.engines.sandbox import self_test
from workers.engines.sandbox.engine import SandboxEngine
from workers.engines.sandbox.run_dirs import RunEnvironment


class BubblewrapEngine(SandboxEngine):
    """Runs commands in namespaces of their own."""

    name = "bubblewrap"
    isolation = Isolation.NAMESPACES
    offered = frozenset({"linux", "ptrace", "namespaces", "egress", "exec_control"})
    own_processes = 3  # strace, bwrap outside, and pid 1 inside
    has_init = True
    programs = ("bwrap",)

    def mount_points(self, spec: RunSpec) -> MountPoints:  # noqa: ARG002  # the same for all
        return MountPoints(backend.WORKSPACE, backend.HOME)

    def requirements(self) -> list[str]:
        found = sandbox_command.missing_tools("bwrap")
        if not found and "--bind-fd" not in (output := _help()):
            missing = (
                "is too old: it has no --bind-fd" if "--bind" in output else f"does not run: {output.strip()[-200:]}"
            )
            found.append(f"this bubblewrap {missing}")
        return found

    def backend(self, environment: RunEnvironment) -> BubblewrapBackend:
        return BubblewrapBackend(environment, **self.backend_options(environment.spec))

    def backend_options(self, spec: RunSpec) -> dict[str, Any]:
        """Return the arguments of the backend of a run, besides its environment."""
        return {
            "version": self.version(spec), "abi": self.abi, "read_only": self.read_only, "cpu": _processor(spec),
        }  # fmt: skip

    def check_further(self, slot: int) -> list[str]:
        """Test that the sandbox dies with the process that started it."""
        with self_test.workspace(self.owner(slot)) as place:
            spec = RunSpec(argv=("true",), workspace=place, slot=slot, timeout_seconds=1)
            with self.run_environment(spec) as environment:
                return self_test.check_parent_death(environment, self.backend(environment))


def _help() -> str:
    setpriv, bwrap = map(sandbox_command.tool_path, ("setpriv", "bwrap"))
    command = [setpriv, "--inh-caps=-all", "--no-new-privs", "--", bwrap, "--help"]  # with as few rights as in a run
    done = subprocess.run(command, env={}, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


def _processor(spec: RunSpec) -> int | None:
    """Return the one processor for tracer and traced, or None if there is no tracer or the job may use more."""
    if spec.limits.cpu_percent > 100 or spec.trace is TraceLevel.NONE:
        return None
    usable = sorted(os.sched_getaffinity(0))
    return usable[spec.slot % len(usable)]
