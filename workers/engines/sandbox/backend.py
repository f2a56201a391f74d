"""The part of a run that differs between engines: how the command is isolated, and how the sandbox is ended."""

from __future__ import annotations

import abc
import subprocess
from pathlib import Path

from workers.engines.contract import TraceLevel
from workers.engines.network.egress import EgressProxy
from workers.engines.sandbox import command
from workers.engines.sandbox.launcher import Launcher, LaunchSpec
from workers.engines.sandbox.processes import HostProcess
from workers.engines.sandbox.reaper import Reaper
from workers.engines.sandbox.run_dirs import RunEnvironment
from workers.engines.tracing.seccomp_notify import SyscallHandler


class SandboxBackend(abc.ABC):
    """One sandbox of one engine, for one run."""

    own_execs: int  # programs that the tracer sees before the command
    layers: tuple[str, ...]

    def __init__(self, environment: RunEnvironment, *, version: str, abi: int, read_only: tuple[str, ...] = ()) -> None:
        """Prepare the sandbox; nothing is started.

        Args:
            environment: The directories, the uid and the control group of the run.
            version: The names and versions of the tools.
            abi: The version of Landlock that the kernel has.
            read_only: Further paths of the machine that the job may read.
        """
        self.environment, self.version, self.abi, self.read_only = environment, version, abi, read_only
        self.reaper = Reaper(environment.uid)
        self.layers += ("control_group",) if environment.group else ("resource_limits",)
        self.layers += ("uid_of_its_own",) if environment.uid is not None else ()
        self.layers += ("egress_proxy",) if environment.spec.egress else ("no_network",)
        self.layers += () if environment.spec.allow_exec else ("one_program",)
        self.is_traced = environment.spec.trace is not TraceLevel.NONE
        self.layers += ("tracer_outside",) if self.is_traced else ()

    @abc.abstractmethod
    def launch_spec(self) -> LaunchSpec:
        """Return what the launcher does before it starts the command."""

    def command(self, launcher: Launcher, fifo: Path) -> tuple[list[str], list[int]]:
        """Return the command that starts the sandbox, and the descriptors that it inherits. The caller closes them."""
        environment, passed = self.environment, list[int]()
        arguments = [
            *self.reaper.command(
                passed,
                limits=environment.spec.limits,
                entrances=environment.group.entrances() if environment.group else (),
            ),
            *command.with_strace(fifo, environment.spec.trace),
            *self.wrapper(passed),
            *launcher.command,
        ]
        return arguments, passed

    def wrapper(self, passed: list[int]) -> list[str]:  # noqa: ARG002  # for engines that have one
        """Return the command between the tracer and the launcher; add the descriptors that it needs to `passed`."""
        return []

    @abc.abstractmethod
    def handlers(self, proxy: EgressProxy | None) -> dict[str, SyscallHandler]:
        """Return how the worker answers system calls that the seccomp filter leaves to it, by name of the call."""

    @abc.abstractmethod
    def started(self, top: subprocess.Popen[bytes]) -> None:
        """Take note of the first process of the sandbox."""

    @abc.abstractmethod
    def is_ready(self) -> bool:
        """Report whether the sandbox is complete, when its launcher waits to start the command."""

    @abc.abstractmethod
    def members(self) -> list[HostProcess]:
        """Return the job's processes, without the sandbox's own."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End all members at once, also those that are stopped or have detached themselves."""

    @abc.abstractmethod
    def close(self, top: subprocess.Popen[bytes]) -> int | None:
        """Release everything, after the last process has ended.

        Returns:
            The end of the command as far as it is known: its exit code, or the negative number of the signal.
        """
