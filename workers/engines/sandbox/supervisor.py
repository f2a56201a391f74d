"""Waits for a job's end, and brings it about: at the deadline, when asked, or over a limit. Monotonic time only."""

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
_LAST_RESORT = 3.0  # between killing the sandbox and killing the tracer that should have ended by itself


@dataclass
class RunSupervisor:
    """`top` is the first process of the row (the tracer), `members` the job's own, `kill` ends all of these at once,
    `trouble` names a limit that was passed, or None, and `over` says that the command itself has ended.
    """

    spec: RunSpec
    stop: StopSignal
    top: subprocess.Popen[bytes]
    members: Callable[[], list[HostProcess]]
    kill: Callable[[], None]
    trouble: Callable[[], str | None]
    over: Callable[[], bool]

    def keep(self) -> str | None:
        """Return when `top` has ended: why it was made to (`timeout`, `stopped`, `disk_full`, ...), or None."""
        deadline = time.monotonic() + self.spec.timeout_seconds
        if self.top.poll() is not None:
            return None
        while not self._ended():
            reason = self._reason(deadline)
            if reason or self.over():
                self._end(reason)
                return reason
        return None

    def _reason(self, deadline: float) -> str | None:
        if self.stop.requested.is_set() or self.stop.immediate.is_set():
            return "stopped"
        return "timeout" if time.monotonic() >= deadline else self.trouble()

    def _end(self, reason: str | None) -> None:
        if reason in ("timeout", "stopped"):
            self._ask_politely()
        self.kill()  # the command's end is also that of what it left running
        if not self._ended(within=_LAST_RESORT):
            self.top.kill()

    def _ask_politely(self) -> None:
        for process in [] if self.stop.immediate.is_set() else self.members():
            processes.send(process, signal.SIGTERM)
        end = time.monotonic() + self.spec.grace_seconds
        while time.monotonic() < end and not self.stop.immediate.is_set():
            if self._ended():
                return

    def _ended(self, *, within: float = _TICK) -> bool:
        return processes.has_ended(self.top.pid, within=within)
