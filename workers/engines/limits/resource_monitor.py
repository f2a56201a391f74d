"""Measures a running job: its disk, its memory and processes, and the free space of the worker's file system.

Memory and processes are measured where no control group counts them. Where the slot has a volume, the kernel enforces
the disk limit and the measurement is one system call per tick. Where it has none, the directories are walked: at least
once a second, at once when the file system grew by what the job had left, and once more after the command has ended.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from workers.engines.contract import RunLimits
from workers.engines.limits import disk
from workers.engines.limits.disk import DiskUse
from workers.engines.limits.reserve import FreeSpace, Reserve
from workers.engines.limits.volumes import Volume, Volumes
from workers.engines.sandbox import processes
from workers.engines.sandbox.processes import HostProcess

_TICK = 0.1
_MIN_PAUSE, _MAX_PAUSE, _PAUSE_PER_WALK = 0.5, 1.0, 10  # seconds between walks: a tenth of the time while that is short
_OWN_BYTES, _OWN_INODES = 1 << 20, 16  # directories and block lists of the engine, in a volume


class Gauge(Protocol):
    """Measures the disk of one job."""

    def is_due(self) -> bool: ...

    def measure(self, found: list[HostProcess] | None, cancelled: Callable[[], bool]) -> DiskUse:
        """Measure. `found`: the job's processes, if known; `cancelled` stops a walk early."""
        ...

    def exceeds(self, use: DiskUse) -> bool: ...

    def free(self) -> FreeSpace:
        """Return the free space of the worker's file system."""
        ...


class VolumeGauge:
    """Reads the counters of the slot's volume."""

    def __init__(self, limits: RunLimits, volume: Volume, volumes: Volumes) -> None:
        self.limits, self.volume, self.volumes = limits, volume, volumes

    def is_due(self) -> bool:
        return True

    def measure(self, found: list[HostProcess] | None, cancelled: Callable[[], bool]) -> DiskUse:  # noqa: ARG002
        return self.volume.use()

    def exceeds(self, use: DiskUse) -> bool:
        limits = self.limits
        over_inodes = use.entries > limits.max_inodes + _OWN_INODES
        return use.is_full or over_inodes or use.bytes > limits.disk_bytes + _OWN_BYTES

    def free(self) -> FreeSpace:
        return FreeSpace.of(self.volume.machine(), self.volumes.unwritten_bytes())


class TreeGauge:
    """Walks through the job's directories and reads the deleted files that its processes hold."""

    # All gauges in use: what one job wrote is no unexplained growth to another.
    _active: ClassVar[set[TreeGauge]] = set()
    _lock: ClassVar = threading.Lock()

    def __init__(self, limits: RunLimits, spaces: list[Path], members: Callable[[], list[HostProcess]]) -> None:
        self.limits, self.spaces, self.members = limits, spaces, members
        self._device = spaces[0].stat().st_dev
        self._used_at_start = self._used_at_walk = self._used()
        self._at_start: int | None = None  # what lay in the directories at the first walk
        self._grown = 0
        self.last = DiskUse()
        self._due = 0.0

    def is_due(self) -> bool:
        left = self.limits.disk_bytes - self.last.bytes
        return time.monotonic() >= self._due or self._used() - self._used_at_walk > left

    def measure(self, found: list[HostProcess] | None, cancelled: Callable[[], bool]) -> DiskUse:
        started = time.monotonic()
        used = self._used_at_walk = self._used()
        tree = disk.tree_use(self.spaces, self.limits.max_inodes, cancelled)
        members = self.members() if found is None else found
        use = tree + disk.deleted_use((process.pid for process in members), self._device)
        if self._at_start is None:
            self._at_start = use.bytes
        self.last, self._grown = use, max(0, use.bytes - self._at_start)
        with self._lock:
            self._active.add(self)
        if use.is_blind and not self.exceeds(use):
            # Something is hidden. The growth of the file system that no job explains may be all of it.
            use += DiskUse(max(0, used - self._used_at_start - self._explained()))
        spent = time.monotonic() - started
        self._due = time.monotonic() + min(max(_MIN_PAUSE, _PAUSE_PER_WALK * spent), _MAX_PAUSE)
        return use

    def exceeds(self, use: DiskUse) -> bool:
        return use.bytes > self.limits.disk_bytes or use.entries > self.limits.max_inodes

    def free(self) -> FreeSpace:
        return FreeSpace.of(os.statvfs(self.spaces[0]))

    def close(self) -> None:
        with self._lock:
            self._active.discard(self)

    def _used(self) -> int:
        found = os.statvfs(self.spaces[0])
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    @classmethod
    def _explained(cls) -> int:
        with cls._lock:
            return sum(gauge._grown for gauge in cls._active)  # noqa: SLF001  # of this class


class ResourceMonitor(threading.Thread):
    """Sets `exceeded` to `disk_full`, `worker_disk_full` or `out_of_memory` when a limit is passed."""

    # By use: of several jobs on a machine that runs low, the largest is stopped first.
    _active: ClassVar[set[ResourceMonitor]] = set()
    _lock: ClassVar = threading.Lock()

    def __init__(
        self,
        limits: RunLimits,
        gauge: Gauge,
        members: Callable[[], list[HostProcess]],
        *,
        counts_all: bool,
        reserve: Reserve,
    ) -> None:
        super().__init__(name="monitor", daemon=True)
        self.limits, self.gauge, self.members, self.reserve = limits, gauge, members, reserve
        self.counts_all = counts_all  # also measures memory and processes
        self.exceeded: str | None = None
        self.error: Exception | None = None
        self.disk_peak = 0
        self.disk_bytes = 0
        self.memory_peak = 0
        self.processes_peak = 0
        self._over = threading.Event()

    def run(self) -> None:
        with self._lock:
            self._active.add(self)
        try:
            while not self._over.wait(_TICK):
                self.check()
        except Exception as error:  # noqa: BLE001  # an unmeasured limit is not enforced: the job ends
            self.error = error

    def check(self) -> None:
        found = self.members() if self.counts_all else None
        if found is not None:
            self._check_memory(found)
        if self.gauge.is_due():
            self._take_disk(self.gauge.measure(found, self._over.is_set))
        self._check_reserve()

    def stop(self) -> None:
        """Measure the disk once more, after the last process has ended: a short run must not escape the limit."""
        self._over.set()
        if self.is_alive():
            self.join()
        with self._lock:
            self._active.discard(self)
        self._take_disk(self.gauge.measure([], lambda: False))
        if isinstance(self.gauge, TreeGauge):
            self.gauge.close()

    def _check_memory(self, found: list[HostProcess]) -> None:
        memory = processes.memory_of(found)
        self.memory_peak = max(self.memory_peak, memory)
        self.processes_peak = max(self.processes_peak, processes.threads_of(found))
        if memory > self.limits.memory_bytes:
            self.exceeded = self.exceeded or "out_of_memory"

    def _take_disk(self, use: DiskUse) -> None:
        self.disk_bytes = use.bytes
        self.disk_peak = max(self.disk_peak, use.bytes)
        if self.gauge.exceeds(use):
            self.exceeded = self.exceeded or "disk_full"

    def _check_reserve(self) -> None:
        if self.reserve.must_stop(self.gauge.free(), is_largest=self._is_largest()):
            self.exceeded = self.exceeded or "worker_disk_full"

    def _is_largest(self) -> bool:
        with self._lock:
            return self.disk_bytes >= max((monitor.disk_bytes for monitor in self._active), default=0)
