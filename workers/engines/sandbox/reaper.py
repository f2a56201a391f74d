"""Starts `reaper.pl`, the parent of every job, which ends the job when the worker closes a pipe or dies.

It also ends the job at a deadline that the worker renews over the pipe, so that no job outlives its lease while the
worker is stopped.

A death signal alone is not enough: it reaches one process, and strace stops its own child for a short time before it
traces it. If strace died then, nothing would wake the child.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from pathlib import Path

from workers.engines.sandbox import command as sandbox_command
from workers.engines.sandbox.launcher import PERL, memory_file

SCRIPT = Path(__file__).with_name("reaper.pl").read_bytes()


class Reaper:
    """One reaper, outside of the job's limits. Its exit code is the tracer's, as a shell returns it."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self._reader, self._lifeline = os.pipe()
        os.set_blocking(self._lifeline, False)
        self._lock = threading.Lock()

    def command(self, passed: list[int]) -> list[str]:
        """Return the start of the command; add the descriptors that it inherits to `passed`."""
        script = memory_file("reaper", SCRIPT)
        passed += [script, self._reader]
        return [
            PERL,
            f"/proc/self/fd/{script}",
            str(self._reader),
            str(self.uid or 0),
            sandbox_command.tool_path("setpriv"),
        ]

    def release(self) -> None:
        """Close the lifeline, as the death of the worker would. A second call changes nothing."""
        with self._lock:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def renew(self, deadline: float) -> None:
        """Move the deadline of the job, in seconds of CLOCK_BOOTTIME; at first before the reaper starts."""
        with self._lock, contextlib.suppress(OSError):  # it has ended
            if self._lifeline >= 0:
                os.write(self._lifeline, struct.pack("d", deadline))

    def hand_over(self) -> int:
        """Return the lifeline for another process, which must inherit it; the caller closes it."""
        lifeline, self._lifeline = self._lifeline, -1
        return lifeline
