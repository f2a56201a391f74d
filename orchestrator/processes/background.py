"""Works on stored results, outputs and images in threads of their own, so that no lease expires late meanwhile."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from django.db import connection

from orchestrator.core.row_batches import RowRunner
from orchestrator.images.collection import collect_images
from orchestrator.images.quotas import forget_counts
from orchestrator.maintenance import leases
from orchestrator.results.outputs import delete_orphans

log = logging.getLogger(__name__)

FIRST_COLLECTION_SECONDS = 600.0  # after the start of the process
COLLECTION_SECONDS = 86_400.0  # between two collections: each one lists all files of its store


class _Stopped(Exception):
    """The process ends: no further result is read."""


class BackgroundWork:
    """Runs one function at a time in a thread beside the rounds of the scheduler.

    A process that no longer leads may still end what it has begun.
    """

    name: str

    def __init__(self) -> None:
        """Begin without a thread."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def is_running(self) -> bool:
        """Whether the last function has not returned yet."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the function has ended, at most so long. Return whether it has."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return not self.is_running

    def stop(self, timeout_seconds: float) -> bool:
        """Begin nothing more, and wait for the function. It checks `is_stopping` between two steps."""
        self._stopping.set()
        return self.wait(timeout_seconds)

    def is_stopping(self) -> bool:
        """Return whether the process ends."""
        return self._stopping.is_set()

    def _start(self, function: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=[function], name=self.name, daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], None]) -> None:
        try:
            with suppress(_Stopped):
                function()
        except Exception:
            log.exception("%s failed; a later round tries it again", self.name)
        finally:
            connection.close()


class ResultReader(BackgroundWork):
    """Reads due results one after another.

    A result of 50,000 benchmarks takes 12 s of processor time. In the thread of the rounds it would delay the expiry of
    all leases, and a stand-by would take over meanwhile. Two processes may read one result: `settle` stores the first
    outcome only.
    """

    name = "result-reader"

    def __init__(self) -> None:
        """Begin without a thread. The first due result starts one."""
        super().__init__()
        self._rows = RowRunner("read_results_again", before_each=self._check)

    def advance(self, rows: RowRunner) -> bool:
        """Start to read what is due, unless the last reading continues. Return whether it has begun.

        Args:
            rows: The runner of the task. It gets the number of the rows that failed since the last call.
        """
        if self.is_running:
            return False
        # From here to the start of the thread no other thread uses `_rows`.
        rows.failed_rows += self._rows.failed_rows
        self._rows.failed_rows = 0
        if self.is_stopping() or not leases.unread_results(self._rows):
            return False
        self._rows.begin()
        self._start(self._read)
        return True

    def _check(self) -> None:
        if self.is_stopping():
            raise _Stopped

    def _read(self) -> None:
        leases.read_results_again(self._rows)


class DailyCollector(BackgroundWork):
    """Deletes once a day what a store contains and no row needs."""

    def __init__(
        self,
        name: str,
        collect: Callable[[Callable[[], bool]], str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a thread.

        Args:
            name: The name of the thread.
            collect: Deletes, and returns the line for the log. It gets a function that returns whether to stop.
            monotonic: The clock, in seconds.
        """
        super().__init__()
        self.name = name
        self._collect = collect
        self._monotonic = monotonic
        self._due = monotonic() + FIRST_COLLECTION_SECONDS

    def advance(self) -> bool:
        """Start a collection if it is due. Return whether it has begun."""
        if self._monotonic() < self._due or self.is_running or self.is_stopping():
            return False
        self._due = self._monotonic() + COLLECTION_SECONDS
        self._start(lambda: log.info("%s: %s", self.name, self._collect(self.is_stopping)))
        return True


def collect_outputs(is_stopping: Callable[[], bool]) -> str:
    """Delete stored outputs that no job names."""
    return f"{delete_orphans(is_stopping)} stored outputs that no job names were deleted"


def collect_registry(is_stopping: Callable[[], bool]) -> str:
    """Delete what no image of the registry needs."""
    collected = collect_images(is_stopping=is_stopping)
    forget_counts()
    return f"{collected.uploads} uploads, {collected.blobs} blobs and {collected.files} files were deleted"
