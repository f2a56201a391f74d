"""The worker's side of `reaper.pl`, the parent of every job: it ends all of the job when the worker lets go or dies.

A death signal alone is not enough: it reaches one process, and strace stops its own child for a moment before it traces
it, which nobody would ever wake if strace died then.
"""

from __future__ import annotations

import os
from pathlib import Path

from workers.engines.sandbox import command
from workers.engines.sandbox.launcher import PERL, memory_file

SCRIPT = Path(__file__).with_name("reaper.pl").read_bytes()


class Reaper:
    """One keeper, outside of the job's limits. Its exit code is the tracer's, in the shell's manner."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self._reader, self._lifeline = os.pipe()

    def row(self, passed: list[int]) -> list[str]:
        """The first words of the row of programs; adds to `passed` what it inherits."""
        script = memory_file("keeper", SCRIPT)
        passed += [script, self._reader]
        return [PERL, f"/proc/self/fd/{script}", str(self._reader), str(self.uid or 0), command.tool_path("setpriv")]

    def let_go(self) -> None:
        """As if the worker had died. A second call changes nothing."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def hand_over(self) -> int:
        """Give the lifeline to another process: what this returns, it must inherit and we must close."""
        lifeline, self._lifeline = self._lifeline, -1
        return lifeline
