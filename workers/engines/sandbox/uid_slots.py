"""Slots: whose uid a job runs under, and that no two jobs ever share one, in this process or in another."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import threading
from collections.abc import Iterator, Sequence

from workers.engines.contract import SPARE, EngineUnavailable, RunSpec
from workers.engines.limits.cgroups import Hierarchy
from workers.engines.limits.volumes import Volumes
from workers.engines.sandbox import processes

FIRST_UID = 61000


class UidSlots:
    """Started as root, slot n is uid `first_uid + n` (and the gid of the same number). Else it is who we are.

    Two workers started as root on one machine need ranges of their own: one of them would find its slots taken.
    """

    def __init__(self, first_uid: int = FIRST_UID) -> None:
        if first_uid < 1000:
            raise ValueError(f"first_uid {first_uid}: uids below 1000 belong to the system")
        self.first_uid = first_uid
        self._busy: set[int] = set()
        self._lock = threading.Lock()

    def uid(self, slot: int) -> int | None:
        return self.first_uid + slot if os.geteuid() == 0 else None

    @contextlib.contextmanager
    def taken(self, slot: int) -> Iterator[None]:
        """Hold the slot. Raises EngineUnavailable when a job runs in it, or its uid is somebody's: everything that runs
        under it is killed after each job.
        """
        with self._lock:
            if slot in self._busy:
                raise EngineUnavailable(f"slot {slot} already runs a job")
            self._busy.add(slot)
        try:
            with self._uid_held(self.uid(slot)):
                yield
        finally:
            with self._lock:
                self._busy.discard(slot)

    @contextlib.contextmanager
    def spare(self) -> Iterator[int]:
        """A slot for the checks at a worker's start, beside other workers of this machine that have begun."""
        with contextlib.ExitStack() as stack:
            for slot in SPARE:
                with contextlib.suppress(EngineUnavailable):
                    stack.enter_context(self.taken(slot))
                    yield slot
                    return
            raise EngineUnavailable("all spare slots are taken: too many workers start at a time")

    @staticmethod
    @contextlib.contextmanager
    def _uid_held(uid: int | None) -> Iterator[None]:
        """A name in the abstract namespace: one holder on this machine, and gone with its process however that ends."""
        if uid is None:
            yield
            return
        with contextlib.suppress(KeyError):
            raise EngineUnavailable(f"uid {uid} belongs to {pwd.getpwuid(uid).pw_name}: choose another first_uid")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as name:
            try:
                name.bind(f"\0runtime-orchestrator/uid/{uid}")
            except OSError as error:
                raise EngineUnavailable(f"uid {uid} runs a job of another worker on this machine") from error
            yield


def group_name(uid: int | None) -> str:
    return f"uid-{uid}"


def clean(slots: UidSlots, numbers: Sequence[int], hierarchy: Hierarchy | None) -> None:
    """End and remove what an earlier life left in these slots. One that another worker uses is not ours to clean."""
    for number in numbers:
        uid = slots.uid(number)
        if uid is None:
            continue  # an ordinary user's jobs died with their worker, and no uid tells them from his other processes
        with contextlib.suppress(EngineUnavailable), slots.taken(number):
            processes.kill_uid(uid)
            if hierarchy:
                group = hierarchy.group(group_name(uid), extra=0)
                group.kill()
                group.remove()


def require_volume(volumes: Volumes | None, order: RunSpec) -> None:
    """Raise EngineUnavailable for a workspace outside of the volumes that `check` has promised."""
    if volumes and volumes.of(order.workspace) is None:
        raise EngineUnavailable(f"{order.workspace.name} lies in no volume: make it in the slot's `directory`")


def soft_limits(hierarchy: Hierarchy | None, no_volumes: str) -> tuple[str, ...]:
    """Returns the limits that only measurements at intervals hold, in words for an operator.

    `no_volumes`: why this machine has none; empty when the kernel enforces the disk limit.
    """
    disk = (
        "disk: single files by the kernel, the whole job by measuring it about once a second, so that a job may pass "
        f"its limit for the time of a measurement (no volumes: {no_volumes})"
    )
    disk_limit = (disk,) if no_volumes else ()
    if hierarchy:
        return disk_limit
    return (
        *disk_limit,
        "memory: single processes by the kernel, the whole job by looking ten times a second",
        "processes: by the kernel, but a job that hits the limit is not told from one that fails",
        "cpu: not limited",
    )
