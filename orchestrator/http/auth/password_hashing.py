"""Bounds password hashing: few hashes at a time per process, and no database connection held meanwhile.

One Argon2 hash costs about 100 MiB and a quarter of a second of processor time. Without a bound, 40 log-in attempts at
once occupied every request thread and every pooled connection of a process. The bound is in the hasher, so that it
holds for each page and command that verifies or sets a password.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.contrib.auth.hashers import Argon2PasswordHasher
from django.db import connections

from orchestrator.core.compute_slots import compute_slots

MAX_CONCURRENT_HASHES: Final = 2
MAX_WAITING_HASHES: Final = 8
WAIT_SECONDS: Final = 5.0


class HashingBusy(Exception):
    """Too many passwords are being hashed in this process. A later attempt may succeed."""

    retry_after = 5  # seconds


class HashingGate:
    """Admits a fixed number of threads to the password hasher, and lets a bounded number wait for them."""

    def __init__(self, *, concurrent: int, waiting: int, wait_seconds: float) -> None:
        self._slots = threading.Semaphore(concurrent)
        self._places = threading.Semaphore(concurrent + waiting)
        self._wait_seconds = wait_seconds

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one of the slots.

        Raises:
            HashingBusy: All places in the queue are taken, or no slot became free within the wait.
        """
        if not self._places.acquire(blocking=False):
            raise HashingBusy
        try:
            if not self._slots.acquire(timeout=self._wait_seconds):
                raise HashingBusy
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self._places.release()


gate = HashingGate(concurrent=MAX_CONCURRENT_HASHES, waiting=MAX_WAITING_HASHES, wait_seconds=WAIT_SECONDS)


class BoundedArgon2(Argon2PasswordHasher):
    """Django's Argon2 hasher behind the process's gate, with one thread for each hash.

    Django's default of eight lanes starts eight threads. Two hashes then had 16 threads ready to run, and the event
    loop got a seventeenth of the processors. One lane needs the same memory and processor time. A stored hash of eight
    lanes remains valid; Django replaces it after the next log-in.
    """

    parallelism = 1

    def encode(self, password: str, salt: str) -> str:
        release_connections()
        with compute_slots.released(), gate.slot():
            return super().encode(password, salt)

    def verify(self, password: str, encoded: str) -> bool:
        release_connections()
        with compute_slots.released(), gate.slot():
            return super().verify(password, encoded)


def release_connections() -> None:
    """Return this thread's database connections to the pool. A connection inside a transaction stays open."""
    for connection in connections.all(initialized_only=True):
        untyped: Any = connection
        if not untyped.in_atomic_block:
            connection.close()
