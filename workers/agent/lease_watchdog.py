"""Stops a job before the server may give it to another worker, when the server has not answered for too long.

In a thread that does nothing else: a heartbeat may hang in a look-up of a name just when time runs out.
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
        """Give up every lease whose time has passed."""
        now = self._clock()
        for active in self._leases.all():
            if now >= active.local_deadline:
                self._leases.discard(active)
                logger.error("job %s: no word from the server for too long: lease given up", active.lease.job.job_id)
                active.owner.lost("no word from the server")

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_SECONDS):
            self.check()
