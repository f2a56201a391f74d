"""Waits for the end of a job, and ends it at the deadline, on request, or over a limit. Monotonic time only."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from workers.engines.contract import RunSpec, StopSignal
from workers.engines.sandbox import processes
from workers.engines.sandbox.processes import HostProcess

_TICK = 0.02
_KILL_SECONDS = 3.0  # between killing the sandbox and killing the tracer that should have ended by itself


@dataclass
class RunSupervisor:
    """Supervises one run.

    Attributes: `top` is the first process of the sandbox (the tracer or the reaper). `members` returns the job's own
    processes, `kill` ends all of these at once. `exceeded_limit` returns the limit that was exceeded, or None.
    `command_ended` returns whether the command itself has ended.
    """

    spec: RunSpec
    stop: StopSignal
    top: subprocess.Popen[bytes]
    members: Callable[[], list[HostProcess]]
    kill: Callable[[], None]
    exceeded_limit: Callable[[], str | None]
    command_ended: Callable[[], bool]

    def wait(self) -> str | None:
        """Wait until `top` has ended. Returns why it was ended (`timeout`, `stopped`, `disk_full`, ...), or None."""
        deadline = time.monotonic() + self.spec.timeout_seconds
        if self.top.poll() is not None:
            return None
        while not self._ended():
            reason = self._reason(deadline)
            if reason or self.command_ended():
                self._end(reason)
                return reason
        return None

    def _reason(self, deadline: float) -> str | None:
        if self.stop.requested.is_set() or self.stop.immediate.is_set():
            return "stopped"
        return "timeout" if time.monotonic() >= deadline else self.exceeded_limit()

    def _end(self, reason: str | None) -> None:
        if reason in ("timeout", "stopped"):
            self._terminate()
        self.kill()  # what the command left running ends with it
        if not self._ended(within=_KILL_SECONDS):
            self.top.kill()

    def _terminate(self) -> None:
        for process in [] if self.stop.immediate.is_set() else self.members():
            processes.send(process, signal.SIGTERM)
        end = time.monotonic() + self.spec.grace_seconds
        while time.monotonic() < end and not self.stop.immediate.is_set():
            if self._ended():
                return

    def _ended(self, *, within: float = _TICK) -> bool:
        return processes.has_ended(self.top.pid, within=within)
