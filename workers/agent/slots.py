"""The places where jobs run. A slot's number stands for a uid and for cgroups, so it is held once on a machine, by a
lock that the kernel gives up with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from pathlib import Path

from workers.agent.errors import WorkerStartError

MAX_SLOTS = 160  # above them are the engines' spare ones, and then uids that are systemd's


def lock_folder() -> Path:
    """Return where this account's workers lock their slots: one place for all of them."""
    if os.geteuid() == 0:
        return Path("/run/runtime-orchestrator/slots")
    return Path("/tmp", f"runtime-orchestrator-{os.geteuid()}")  # noqa: S108 - owner and mode are checked below


class WorkerSlots:
    """The slots that this process holds: the first `count` that no other worker of this machine has."""

    def __init__(self, count: int, folder: Path | None = None) -> None:
        self._locks: dict[int, int] = {}
        self._changed = threading.Condition()
        self._take(count, _private(folder or lock_folder()))
        self._free = sorted(self._locks)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(self._locks))

    def take(self, *, within: float) -> int | None:
        """Return a free slot, or None if there is none `within` so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, within):
                return None
            return self._free.pop(0)

    def take_free(self, most: int) -> list[int]:
        """Return up to `most` of the slots that are free now."""
        with self._changed:
            taken, self._free = self._free[:most], self._free[most:]
            return taken

    def give_back(self, slot: int) -> None:
        with self._changed:
            self._free = sorted({*self._free, slot})
            self._changed.notify_all()

    def close(self) -> None:
        """Leave the slots to other workers."""
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()

    def _take(self, count: int, folder: Path) -> None:
        for number in range(MAX_SLOTS):
            if len(self._locks) == count:
                return
            lock = locked(folder / f"slot-{number}")
            if lock is not None:
                self._locks[number] = lock
        self.close()
        raise WorkerStartError(f"no {count} free slots on this machine: {folder} holds the locks of the others")


def locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock on `path` until it is closed, or None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _private(folder: Path) -> Path:
    try:
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise WorkerStartError(f"cannot lock the slots of this machine in {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise WorkerStartError(f"{folder} is not a folder that only this account writes: remove it")
    return folder
