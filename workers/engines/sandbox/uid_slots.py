"""Slots and their uids: which uid a job runs as, and that no two jobs of this machine ever share one."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import threading
from collections.abc import Iterator, Sequence

from workers.engines.contract import SPARE, EngineUnavailable
from workers.engines.limits.cgroups import Hierarchy
from workers.engines.sandbox import processes

FIRST_UID = 61000


class UidSlots:
    """Maps slot n to uid `first_uid + n` (and the gid of the same number) if the worker is root.

    Otherwise jobs run as the worker's own uid, and nothing needs to be reserved.
    """

    def __init__(self, first_uid: int = FIRST_UID) -> None:
        if first_uid < 1000:
            raise EngineUnavailable(f"WORKER_FIRST_UID={first_uid}: uids below 1000 belong to the system")
        self.first_uid = first_uid
        self._running: set[int] = set()
        self._reserved: set[int] = set()
        self._lock = threading.Lock()

    def uid(self, slot: int) -> int | None:
        """Return the uid of a slot, or None for the worker's own."""
        return self.first_uid + slot if os.geteuid() == 0 else None

    @contextlib.contextmanager
    def reserved(self, slot: int) -> Iterator[None]:
        """Reserve the uid of a slot on this machine, also while no job runs in it.

        Raises:
            EngineUnavailable: The uid belongs to an account, or another worker has it.
        """
        with _reserved_uid(self.uid(slot)):
            self._reserved.add(slot)
            try:
                yield
            finally:
                self._reserved.discard(slot)

    @contextlib.contextmanager
    def running(self, slot: int) -> Iterator[None]:
        """Reserve the slot for one job. After each job everything that runs under its uid is killed.

        Raises:
            EngineUnavailable: A job runs in it, the uid belongs to an account, or another worker has it.
        """
        with self._lock:
            if slot in self._running:
                raise EngineUnavailable(f"slot {slot} already runs a job")
            self._running.add(slot)
        try:
            with contextlib.nullcontext() if slot in self._reserved else _reserved_uid(self.uid(slot)):
                yield
        finally:
            with self._lock:
                self._running.discard(slot)

    @contextlib.contextmanager
    def spare(self) -> Iterator[int]:
        """Reserve a slot for the self-test, which may run in several workers of this machine at the same time."""
        with contextlib.ExitStack() as stack:
            for slot in SPARE:
                with contextlib.suppress(EngineUnavailable):
                    stack.enter_context(self.running(slot))
                    yield slot
                    return
            raise EngineUnavailable(
                f"all {len(SPARE)} slots for self-tests are in use: start fewer workers at the same time"
            )

    def clean(self, slots: Sequence[int], hierarchy: Hierarchy | None) -> None:
        """End the processes and remove the control groups that a killed worker left in these slots.

        Skips a slot that another worker has reserved. Does nothing for an ordinary user: the jobs died with their
        worker, and their uid is that of the user's other processes.
        """
        cleaned = set()
        for slot in slots:
            uid = self.uid(slot)
            if uid is not None:
                with contextlib.suppress(EngineUnavailable), self.running(slot):
                    processes.kill_uid(uid)
                    cleaned.add(uid)
        if hierarchy and cleaned:
            hierarchy.remove_abandoned(cleaned)


@contextlib.contextmanager
def _reserved_uid(uid: int | None) -> Iterator[None]:
    """Hold a name in the abstract socket namespace: the kernel gives it to one process and frees it at its end.

    Each network namespace has its own names, so those of the others are looked at too. Each worker looks after it has
    its own name: of two that start at the same time, at least one finds the other's. Processes of the uid that have no
    such name belong to another program.
    """
    if uid is None:
        yield
        return
    with contextlib.suppress(KeyError):
        raise EngineUnavailable(f"uid {uid} belongs to the account {pwd.getpwuid(uid).pw_name}: set WORKER_FIRST_UID")
    reservation = f"runtime-orchestrator/uid/{uid}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as name:
        try:
            name.bind(f"\0{reservation}")
        except OSError as error:
            raise EngineUnavailable(f"uid {uid} is in use by another worker on this machine") from error
        if processes.other_worker_has_name(f"@{reservation}", os.fstat(name.fileno()).st_ino):
            raise EngineUnavailable(f"uid {uid} is in use by a worker of another network namespace")
        if pid := processes.foreign_process(uid):
            raise EngineUnavailable(f"uid {uid} is in use by process {pid} of another network namespace")
        yield
