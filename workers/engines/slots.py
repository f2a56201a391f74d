"""Slots: whose uid a job runs under, and that no two jobs ever share one, in this process or in another."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

from workers.engines.base import EngineUnavailable

FIRST_UID = 61000


class Slots:
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
        """Hold the slot. Raises EngineUnavailable when a job runs in it."""
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

    @staticmethod
    @contextlib.contextmanager
    def _uid_held(uid: int | None) -> Iterator[None]:
        """A name in the abstract namespace: one holder on this machine, and gone with its process however that ends."""
        if uid is None:
            yield
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as name:
            try:
                name.bind(f"\0runtime-orchestrator/uid/{uid}")
            except OSError as error:
                raise EngineUnavailable(f"uid {uid} runs a job of another worker on this machine") from error
            yield
