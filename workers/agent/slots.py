"""The slots of a worker: places for jobs, each with a number.

The number determines a uid, so a slot is locked on the machine. The kernel frees the lock with the process, however
that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from workers.agent.errors import WorkerStartError
from workers.engines.contract import EngineUnavailable

logger = logging.getLogger(__name__)

Reserve = Callable[[int], contextlib.AbstractContextManager[None]]

MAX_SLOTS = 160  # above them are the slots of self-tests, and then uids of systemd


def lock_folder() -> Path:
    """Return the directory of the locks, the same for all workers of this account."""
    if os.geteuid() == 0:
        return Path("/run/runtime-orchestrator/slots")
    return Path("/tmp", f"runtime-orchestrator-{os.geteuid()}")  # noqa: S108 - owner and mode are checked below


def _no_reservation(_slot: int) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class WorkerSlots:
    """The slots of this process: the first `count` that are free on this machine."""

    def __init__(self, count: int, folder: Path | None = None, reserve: Reserve = _no_reservation) -> None:
        """Take the slots.

        Args:
            count: How many.
            folder: Where the locks are; None: the place for all workers of this account.
            reserve: Reserves the resources of a slot, such as its uid. A slot that it refuses is left out.

        Raises:
            WorkerStartError: There are too few free slots.
        """
        self._held: dict[int, contextlib.ExitStack] = {}
        self._changed = threading.Condition()
        self._take(count, _private(folder or lock_folder()), reserve)
        self._free = sorted(self._held)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(self._held))

    def take(self, *, within: float) -> int | None:
        """Return a free slot, or None if none becomes free within so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, within):
                return None
            return self._free.pop(0)

    def take_free(self, limit: int) -> list[int]:
        """Return up to `limit` of the slots that are free now."""
        with self._changed:
            taken, self._free = self._free[:limit], self._free[limit:]
            return taken

    def release(self, slot: int) -> None:
        with self._changed:
            self._free = sorted({*self._free, slot})
            self._changed.notify_all()

    def close(self) -> None:
        """Free the slots for other workers."""
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _take(self, count: int, folder: Path, reserve: Reserve) -> None:
        reason = f"other workers hold the locks in {folder}"
        for slot in range(MAX_SLOTS):
            if len(self._held) == count:
                return
            lock = locked(folder / f"slot-{slot}")
            if lock is None:
                continue
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, lock)
                try:
                    stack.enter_context(reserve(slot))
                except EngineUnavailable as refusal:
                    reason = str(refusal)
                    logger.warning("slot skipped slot=%d reason=%r", slot, reason)
                else:
                    self._held[slot] = stack.pop_all()
        found = len(self._held)
        self.close()
        raise WorkerStartError(
            f"{found} of the {MAX_SLOTS} slots of this machine are free, {count} are needed ({reason}): "
            "stop other workers, lower --capacity, or set WORKER_FIRST_UID"
        )


def locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock on `path` until it is closed, or None if another process has it."""
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
        raise WorkerStartError(f"{folder} must be a directory that only this account can write: remove it")
    return folder
