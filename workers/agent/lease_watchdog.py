"""Stops a job before the server may lease it to another worker, when the server has not answered for too long.

The thread does nothing else: a heartbeat may block in a name lookup when the time runs out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workers.agent.active_leases import ActiveLeases, boottime
from workers.agent.crash import CrashHandler

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 0.25


class LeaseWatchdog:
    """Ends leases at their local deadline."""

    def __init__(
        self,
        leases: ActiveLeases,
        clock: Callable[[], float] = boottime,
        *,
        crash_handler: CrashHandler | None = None,
    ) -> None:
        self._leases = leases
        self._clock = clock
        self._closing = threading.Event()
        run = (crash_handler or CrashHandler()).run
        self._thread = threading.Thread(target=run, args=(self._run,), name="lease-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def check(self) -> None:
        """End every lease that has reached its local deadline."""
        now = self._clock()
        for active in self._leases.all():
            if now >= active.local_deadline:
                self._leases.discard(active)
                logger.error("lease ended: no response from the server for too long job=%s", active.lease.job.job_id)
                active.owner.lost("no response from the server")

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_SECONDS):
            self.check()
