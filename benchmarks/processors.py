"""Measures how much of the machine's processors each kind of process uses: on two cores that limits a figure."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.environment import Cluster
from config import paths

TICKS = os.sysconf("SC_CLK_TCK")


class Used:
    """Measures from its creation until `shares`: processors in use by each kind, 1.0 is one core.

    `machine`: by all processes, foreign ones included.
    """

    def __init__(self, kinds: Mapping[str, Iterable[int]]) -> None:
        self.kinds = {name: list(pids) for name, pids in kinds.items()}
        self.began, self.before, self.all = time.monotonic(), self._seconds(), _busy()

    def shares(self) -> dict[str, float]:
        took = time.monotonic() - self.began
        used = {name: (seconds - self.before[name]) / took for name, seconds in self._seconds().items()}
        return {name: round(share, 2) for name, share in (used | {"machine": (_busy() - self.all) / took}).items()}

    def _seconds(self) -> dict[str, float]:
        return {name: sum(map(spent, pids)) for name, pids in self.kinds.items()}


def of_postgres(cluster: Cluster) -> list[int]:
    """The server's process and its children, those that serve a connection among them."""
    pid_file = paths.home(cluster.state) / "postgres" / "data" / "postmaster.pid"
    pid = int(pid_file.read_text().split()[0])
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def spent(pid: int) -> float:
    """Seconds of a process that lives; of one that has ended nothing is known."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def seconds_of(pid: int) -> float:
    """Return the seconds of a process to the nanosecond, by its threads that live; 0 if it has ended."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def settled_seconds_of(pids: Iterable[int], within: float = 0.05) -> float:
    """Return the seconds of processes once they sleep: before that the kernel's figures are behind.

    Args:
        pids: The processes.
        within: Seconds to wait for that; on a busy machine a process may wait for a processor.
    """
    until, waiting = time.monotonic() + within, list(pids)
    while time.monotonic() < until and any(_is_running(pid) for pid in waiting):
        time.sleep(0.0002)
    return sum(map(seconds_of, waiting))


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                    return True
    return False


def _busy() -> float:
    """Of all processors since the start: everything but idling and waiting for a disk."""
    fields = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS
