"""Decides whether this worker may claim: its disk has room, and its last jobs did not fail for reasons of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_FAILURES = 3  # in a row
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 300.0, 3600.0
# Failure reasons that say nothing about the job.
OWN_REASONS = frozenset({"sandbox_apply_failed", "sandbox_unavailable", "worker_disk_full", "worker_error"})


@dataclass(frozen=True)
class Unready:
    """Why the worker does not claim: a reason of the API, and a sentence for an operator."""

    reason: str
    message: str


class OwnFailures:
    """Counts the jobs that failed in a row for reasons of this worker. Safe between the threads of its jobs.

    After the third one the worker pauses. Then each further one makes another pause, twice as long.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._last = ""
        self._until = 0.0

    def record(self, reason: str | None, message: str = "") -> None:
        """Count the end of a job. Call it before the final message, which may claim the next job.

        Args:
            reason: Why it failed or was released; None: it succeeded.
            message: The same for people.
        """
        with self._lock:
            self._count = self._count + 1 if reason in OWN_REASONS else 0
            self._last = message
            if self._count >= MAX_FAILURES:
                pause = PAUSE_SECONDS * 2 ** min(self._count - MAX_FAILURES, 10)
                self._until = self._clock() + min(pause, MAX_PAUSE_SECONDS)

    def pause(self) -> Unready | None:
        """Return why the worker pauses, or None."""
        with self._lock:
            if self._count < MAX_FAILURES or self._clock() >= self._until:
                return None
            failed = f"{self._count} jobs in a row failed for reasons of this worker, the last one: {self._last}"
            return Unready("repeated_failures", failed)
