"""Looks at a running job now and then: the disk it uses; memory and processes where no control group counts them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from workers.engines import disk, processes
from workers.engines.base import Limits
from workers.engines.processes import Process

_TICK = 0.1
_DISK_EVERY, _DISK_SHARE = 0.5, 10  # at most a tenth of the time is spent walking through a large checkout


class Meter(threading.Thread):
    """`exceeded` becomes `disk_full` or `out_of_memory` when a limit is passed. Ends with `stop`."""

    def __init__(
        self, limits: Limits, spaces: list[Path], members: Callable[[], list[Process]], *, counts_all: bool
    ) -> None:
        super().__init__(name="meter", daemon=True)
        self.limits, self.spaces, self.members = limits, spaces, members
        self.counts_all = counts_all  # memory and processes too, not the disk alone
        self.exceeded: str | None = None
        self.disk_peak = 0
        self.memory_peak = 0
        self.processes_peak = 0
        self._device = spaces[0].stat().st_dev
        self._over = threading.Event()
        self._disk_due = 0.0

    def run(self) -> None:
        while not self._over.wait(_TICK):
            self.look()

    def look(self) -> None:
        found = self.members() if self.counts_all else []
        if self.counts_all:
            self._look_at_memory(found)
        if time.monotonic() >= self._disk_due:
            started = time.monotonic()
            self._look_at_disk(found or self.members())
            spent = time.monotonic() - started
            self._disk_due = time.monotonic() + max(_DISK_EVERY, _DISK_SHARE * spent)

    def stop(self) -> None:
        """Look at the disk at least once, however short the run was."""
        self._over.set()
        if self.is_alive():
            self.join()
        if not self.disk_peak:
            self._take_disk(disk.used(self.spaces))

    def _look_at_memory(self, found: list[Process]) -> None:
        memory = processes.memory_of(found)
        self.memory_peak = max(self.memory_peak, memory)
        self.processes_peak = max(self.processes_peak, processes.threads_of(found))
        if memory > self.limits.memory_bytes:
            self.exceeded = self.exceeded or "out_of_memory"

    def _look_at_disk(self, found: list[Process]) -> None:
        taken = disk.used(self.spaces, self._over.is_set)
        self._take_disk(taken + disk.held_deleted((process.pid for process in found), self._device))

    def _take_disk(self, taken: int) -> None:
        self.disk_peak = max(self.disk_peak, taken)
        if taken > self.limits.disk_bytes:
            self.exceeded = self.exceeded or "disk_full"
