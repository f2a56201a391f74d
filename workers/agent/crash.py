"""Ends the worker process when one of its critical threads fails.

A worker whose heartbeat or watchdog thread is dead still claims jobs, and no longer renews or ends their leases. A
supervisor restarts a process that ended, and the server requeues or retries its jobs.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

EXIT_CODE = 70  # EX_SOFTWARE: an internal error, unlike 1 for a worker that may not start
# After `abandon` a drain takes at most 12 seconds (`claim_loop.SHUTDOWN_SECONDS` and the 2 after it), a claim 5.
FORCED_EXIT_SECONDS = 20.0


class CrashHandler:
    """Records the first failure of a critical thread, stops the jobs, and ends the process."""

    def __init__(
        self, *, forced_exit_seconds: float = FORCED_EXIT_SECONDS, force_exit: Callable[[int], None] = os._exit
    ) -> None:
        self.thread_name: str | None = None
        self._stop_jobs: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._forced_exit_seconds = forced_exit_seconds
        self._force_exit = force_exit

    def stop_jobs_with(self, stop_jobs: Callable[[], None]) -> None:
        """Set the function that stops the jobs; call it at once if a thread has failed already."""
        with self._lock:
            self._stop_jobs = stop_jobs
            crashed = self.thread_name is not None
        if crashed:
            stop_jobs()

    def run(self, target: Callable[[], None]) -> None:
        """Run the body of a critical thread; handle whatever it raises as the failure of the whole process."""
        try:
            target()
        except BaseException as error:  # noqa: BLE001 a thread has no caller that could handle it
            self._crash(threading.current_thread().name, error)

    def _crash(self, thread_name: str, error: BaseException) -> None:
        logger.critical("thread %s failed: the worker stops its jobs and exits", thread_name, exc_info=error)
        with self._lock:
            if self.thread_name is not None:
                return
            self.thread_name = thread_name
            stop_jobs = self._stop_jobs
        # The main thread may be the one that hangs: then the process ends without it, and its jobs with the process.
        timer = threading.Timer(self._forced_exit_seconds, self._force_exit, [EXIT_CODE])
        timer.daemon = True
        timer.start()
        if stop_jobs is None:
            return
        try:
            stop_jobs()
        except BaseException:
            logger.critical("stopping the jobs failed: the worker exits at once", exc_info=True)
            self._force_exit(EXIT_CODE)
