"""Hard limits by control groups, version 1 or 2: one group per job, with the uid of its slot in the name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from workers.engines.contract import EngineUnavailable, RunLimits
from workers.engines.sandbox.processes import DEATH_SECONDS

FAMILY = "runtime-orchestrator"
NEEDED = ("memory", "pids", "cpu")
_CPU_PERIOD = 100_000
_GROUP_NAME = re.compile(r"uid-(\d+)-[0-9a-f]{8}")


@dataclass(frozen=True)
class CgroupUsage:
    """Counters of a group at the end of its job. None: the kernel does not count it."""

    out_of_memory_kills: int = 0
    refused_forks: int = 0
    memory_peak: int | None = None
    processes_peak: int | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class Hierarchy:
    """Directories in which groups can be made. Version 1 has one per controller; version 2 has one for all."""

    version: int
    parents: dict[str, Path]

    def group(self, uid: int | None, *, extra: int) -> ControlGroup:
        """Return a new group, not made yet, for one job of this uid.

        Its name is unique: containers may share this directory and, at the same time, use the same uids.

        Args:
            uid: The uid of the job's slot.
            extra: How many processes of the sandbox itself the group holds.
        """
        return self._named(f"uid-{uid}-{secrets.token_hex(4)}", extra)

    def remove_abandoned(self, uids: Collection[int]) -> None:
        """Remove the groups of workers that were killed. A worker that lives holds a lock on each of its groups.

        Processes are killed in groups of `uids` only. A group of another uid that holds processes stays.
        """
        with contextlib.suppress(OSError), _locked(self._family, fcntl.LOCK_EX):
            for name in {path.name for parent in self.parents.values() for path in (parent / FAMILY).glob("uid-*-*")}:
                if match := _GROUP_NAME.fullmatch(name):
                    group = self._named(name, 0)
                    lock = group.locked() if group.paths[0].exists() else contextlib.nullcontext()
                    with contextlib.suppress(FileNotFoundError, BlockingIOError), lock:
                        if is_ours := int(match[1]) in uids:
                            group.kill()
                        group.remove(within=1.0 if is_ours else 0.0)

    @property
    def _family(self) -> Path:
        return self.parents["memory"] / FAMILY

    def _named(self, name: str, extra: int) -> ControlGroup:
        return ControlGroup(self.version, {key: parent / FAMILY / name for key, parent in self.parents.items()}, extra)


@dataclass
class ControlGroup:
    """The limits and the counters of one job."""

    version: int
    directories: dict[str, Path]  # by controller
    extra: int = 0  # processes of the sandbox itself, which the job's own number does not count
    _lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def paths(self) -> list[Path]:
        """The directories, each once. The first exists before the others and after them."""
        return list(dict.fromkeys((self.directories["memory"], *self.directories.values())))

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the group. Raises BlockingIOError while a worker that lives uses it."""
        return _locked(self.paths[0], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def make(self, limits: RunLimits) -> None:
        """Make the group, with its lock, and write the limits.

        Raises:
            EngineUnavailable: A limit cannot be written. A job never runs with less than was promised.
        """
        first, *others = self.paths
        try:
            for place in self.paths:
                place.parent.mkdir(exist_ok=True)
            # Between its creation and its lock the group looks abandoned.
            with _locked(first.parent, fcntl.LOCK_SH):
                first.mkdir()
                self._lock.enter_context(self.locked())
            for place in others:
                place.mkdir()
            for controller, name, value in self._settings(limits):
                (self.directories[controller] / name).write_text(str(value))
        except OSError as error:
            self.remove()
            raise EngineUnavailable(f"control group: {error}") from error

    def _settings(self, limits: RunLimits) -> list[tuple[str, str, object]]:
        memory, tasks = limits.memory_bytes, limits.processes + self.extra
        quota = max(limits.cpu_percent, 1) * _CPU_PERIOD // 100
        if self.version == 2:
            swap = self.directories["memory"] / "memory.swap.max"
            return [
                ("memory", "memory.max", memory),
                *([("memory", swap.name, 0)] if swap.exists() else []),
                ("pids", "pids.max", tasks),
                ("cpu", "cpu.max", f"{quota} {_CPU_PERIOD}"),
            ]
        with_swap = self.directories["memory"] / "memory.memsw.limit_in_bytes"
        return [
            ("memory", "memory.limit_in_bytes", memory),
            *([("memory", with_swap.name, memory)] if with_swap.exists() else []),
            ("pids", "pids.max", tasks),
            ("cpu", "cpu.cfs_period_us", _CPU_PERIOD),
            ("cpu", "cpu.cfs_quota_us", quota),
        ]

    def entrances(self) -> list[Path]:
        """Return the files to which a process writes its pid to join the group."""
        return [place / "cgroup.procs" for place in self.paths]

    def pids(self) -> list[int]:
        """Return the processes of the group that this pid namespace can see."""
        found: set[int] = set()
        for entrance in self.entrances():
            with contextlib.suppress(OSError):
                found.update(map(int, entrance.read_text().split()))
        return sorted(found - {0})  # 0: a process outside of this pid namespace; a signal to 0 is for our own group

    def kill(self, *, within: float = DEATH_SECONDS) -> bool:
        """Kill all processes of the group.

        Args:
            within: How many seconds to try.

        Returns:
            Whether no process is left.
        """
        end = time.monotonic() + within
        while True:
            for place in self.paths:
                with contextlib.suppress(OSError):  # version 2, Linux 5.14: all at once
                    (place / "cgroup.kill").write_text("1")
            left = self.pids()
            if not left or time.monotonic() > end:
                return not left
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def is_empty(self) -> bool:
        """Report whether the kernel says that the group holds no live process, of any pid namespace.

        Unlike `pids`, it is false where the files cannot be read.
        """
        if self.version == 2:
            return _entry(self.paths[0] / "cgroup.events", "populated") == 0
        try:
            return not any((place / "tasks").read_bytes() for place in self.paths)
        except OSError:
            return False

    def usage(self) -> CgroupUsage:
        """Return the counters."""
        two = self.version == 2
        memory = self.directories["memory"]
        return CgroupUsage(
            out_of_memory_kills=_entry(memory / ("memory.events" if two else "memory.oom_control"), "oom_kill") or 0,
            refused_forks=_entry(self.directories["pids"] / "pids.events", "max") or 0,
            memory_peak=_number(memory / ("memory.peak" if two else "memory.max_usage_in_bytes")),
            processes_peak=self._processes_peak(),
            cpu_seconds=self._cpu_seconds(),
        )

    def _processes_peak(self) -> int | None:
        peak = _number(self.directories["pids"] / "pids.peak")
        return None if peak is None else max(peak - self.extra, 0)

    def _cpu_seconds(self) -> float | None:
        if self.version == 2:
            used = _entry(self.directories["cpu"] / "cpu.stat", "usage_usec")
            return None if used is None else used / 1e6
        used = _number(self.directories["cpuacct"] / "cpuacct.usage") if "cpuacct" in self.directories else None
        return None if used is None else used / 1e9

    def remove(self, *, within: float = 1.0) -> None:
        """Remove the group, trying for `within` seconds: the kernel counts a process for a while after its death."""
        end = time.monotonic() + within
        for place in reversed(self.paths):
            while place.exists():
                try:
                    place.rmdir()
                except OSError:
                    if time.monotonic() >= end:
                        break
                    time.sleep(0.01)
        self._lock.close()


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    """Hold a lock that the kernel frees at the end of this process, however that ends."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _entry(path: Path, key: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return None


def find(
    mountinfo: Path = Path("/proc/self/mountinfo"), *, writable: Callable[[Path], bool] | None = None
) -> Hierarchy | None:
    """Return the hierarchy in which this process may make groups with all three limits, or None."""
    mounts = [line.split() for line in mountinfo.read_text().splitlines()]
    writable = writable or _can_make_groups
    return _version_1(mounts, writable) or _version_2(mounts, writable)


def _version_1(mounts: list[list[str]], writable: Callable[[Path], bool]) -> Hierarchy | None:
    parents: dict[str, Path] = {}
    for mount in mounts:
        kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
        if kind == "cgroup":
            parents.update({name: Path(mount[4]) for name in (*NEEDED, "cpuacct") if name in options})
    if not set(NEEDED) <= set(parents) or not all(writable(parent) for parent in parents.values()):
        return None
    return Hierarchy(1, parents)


def _version_2(mounts: list[list[str]], writable: Callable[[Path], bool]) -> Hierarchy | None:
    for mount in mounts:
        if mount[mount.index("-") + 1] == "cgroup2":
            root = Path(mount[4])
            for parent in (root, root / _own_group().lstrip("/")):
                if writable(parent) and _hand_down(parent):
                    return Hierarchy(2, dict.fromkeys(NEEDED, parent))
    return None


def _own_group() -> str:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")


def _can_make_groups(parent: Path) -> bool:
    probe = parent / f"{FAMILY}-probe-{secrets.token_hex(4)}"  # containers may share this directory and the pid
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _hand_down(parent: Path) -> bool:
    """Enable the controllers for the children of `parent` and of our directory in it: version 2 needs it per level."""
    if not set(NEEDED) <= set((parent / "cgroup.controllers").read_text().split()):
        return False
    if not _switch_on(parent) and not (_step_aside(parent) and _switch_on(parent)):
        return False
    family = parent / FAMILY
    family.mkdir(exist_ok=True)
    return _switch_on(family)


def _switch_on(group: Path) -> bool:
    control = group / "cgroup.subtree_control"
    try:
        if not set(NEEDED) <= set(control.read_text().split()):
            control.write_text(" ".join(f"+{name}" for name in NEEDED))
    except OSError:
        return False
    return True


def _step_aside(parent: Path) -> bool:
    """Move this worker one level deeper: a group with processes of its own cannot enable controllers for children."""
    if (parent / "cgroup.procs").read_text().split() != [str(os.getpid())]:
        return False
    leaf = parent / f"{FAMILY}-worker"
    try:
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return False
    return True
