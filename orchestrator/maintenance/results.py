"""Reads stored results again in a thread of its own, so that no lease expires late meanwhile."""

import logging
import threading
from contextlib import suppress

from django.db import connection

from orchestrator.maintenance import leases
from orchestrator.maintenance.rows import RowRunner

log = logging.getLogger(__name__)


class _Stopped(Exception):
    """The process ends: no further result is read."""


class ResultReader:
    """Reads due results one after another, beside the rounds of the scheduler.

    A result of 50,000 benchmarks takes 12 s of processor time. In the thread of the rounds it would delay the expiry of
    all leases, and a stand-by would take over meanwhile. A process that no longer leads may still end its reading:
    `settle` stores the first outcome only.
    """

    def __init__(self) -> None:
        """Begin without a thread. The first due result starts one."""
        self._rows = RowRunner("read_results_again", before_each=self._check)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def advance(self, rows: RowRunner) -> bool:
        """Start to read what is due, unless the last reading continues. Return whether it has begun.

        Args:
            rows: The runner of the task. It gets the number of the rows that failed since the last call.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        # From here to the start of the thread no other thread uses `_rows`.
        rows.failed_rows += self._rows.failed_rows
        self._rows.failed_rows = 0
        if self._stopping.is_set() or not leases.unread_results(self._rows):
            return False
        self._rows.begin()
        self._thread = threading.Thread(target=self._read, name="result-reader", daemon=True)
        self._thread.start()
        return True

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the reading has ended, at most so long. Return whether it has."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return self._thread is None or not self._thread.is_alive()

    def stop(self, timeout_seconds: float) -> bool:
        """Read no further result, and wait for the current one. Its job stays `processing` if that takes longer."""
        self._stopping.set()
        return self.wait(timeout_seconds)

    def _check(self) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _read(self) -> None:
        try:
            with suppress(_Stopped):
                leases.read_results_again(self._rows)
        except Exception:
            log.exception("results could not be read; the next round tries it again")
        finally:
            connection.close()
