"""Starts `reaper.pl`, the parent of every job, which ends the job when the worker closes a pipe or dies.

It starts the tracer, or the command itself, in the control group, with the limits and as the user of the job. It also
ends the job at a deadline that the worker renews over the pipe, so that no job outlives its lease while the worker is
stopped.

A death signal alone is not enough: it reaches one process, and strace stops its own child for a short time before it
traces it. If strace died then, nothing would wake the child.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

from workers.engines.contract import RunLimits
from workers.engines.sandbox import command as sandbox_command
from workers.engines.sandbox.launcher import OPEN_FILES, PERL, memory_file

SCRIPT = Path(__file__).with_name("reaper.pl").read_bytes()


def process_limits(limits: RunLimits) -> list[tuple[int, int, int]]:
    """Return the limits of each process of a job: number, soft and hard limit."""
    equal = {
        resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: limits.disk_bytes, resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_RTPRIO: 0,
    }  # fmt: skip
    return [(resource.RLIMIT_NOFILE, *OPEN_FILES), *((number, value, value) for number, value in equal.items())]


class Reaper:
    """One reaper, outside of the job's limits. Its exit code is the tracer's, as a shell returns it."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self._reader, self._lifeline = os.pipe()
        os.set_blocking(self._lifeline, False)
        self._lock = threading.Lock()

    def command(self, passed: list[int], *, limits: RunLimits, entrances: Sequence[Path]) -> list[str]:
        """Return the start of the command; add the descriptors that it inherits to `passed`.

        Args:
            passed: The descriptors.
            limits: The kernel's limits of single processes are set by them; the control group limits the whole job.
            entrances: The files to which a process writes its pid to join the control group.
        """
        script = memory_file("reaper", SCRIPT)
        passed += [script, self._reader]
        return [
            PERL,
            f"/proc/self/fd/{script}",
            str(self._reader),
            str(self.uid or 0),
            sandbox_command.tool_path("setpriv"),
            ",".join(":".join(map(str, limit)) for limit in process_limits(limits)),
            "\n".join(map(str, entrances)),
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
