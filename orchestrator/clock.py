"""The clock's loop: several may run, one leads by an advisory lock, a standby takes over when its session ends."""

import logging
import os
import random
import socket
import threading

from django.db import Error, connection

from leases.pruning import IdlePruner
from orchestrator.models import ClockBeat
from orchestrator.scheduling import sweep_scheduling
from orchestrator.sweeps import forget_old_deliveries, forget_old_keys, sweep
from orchestrator.tally.counting import Tally
from runtime_jobs.clock import database_time

log = logging.getLogger(__name__)

LEADER_LOCK = 7_263_001  # the advisory lock that the leader holds; any number that nothing else uses
KEYS_EVERY = 600  # rounds
THOROUGH_EVERY = 10


class Clock:
    """`run()` until `stopping` is set. The lock and the sweeps share one connection: who lost it leads no more."""

    def __init__(self, *, period: float) -> None:
        self.period = period
        self.stopping = threading.Event()
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.rounds = 0
        self.tally = Tally()
        self.pruner = IdlePruner()

    def run(self, *, once: bool = False) -> None:
        while not self.stopping.is_set():
            try:
                self.round()
            except Error as error:
                log.warning("clock round failed: %s", type(error).__name__)
                connection.close()
            if once:
                return
            self.stopping.wait(self.period * random.uniform(0.8, 1.2))  # noqa: S311 jitter

    def round(self) -> bool:
        """Sweep if this clock leads. Returns whether it does."""
        if not _lead():
            return False
        changed = sweep()
        sweep_scheduling(thorough=self.rounds % THOROUGH_EVERY == 0)
        self.tally.go_on()
        if changed:
            log.info("clock changed %d jobs", changed)
        if self.rounds % THOROUGH_EVERY == 0:
            self.pruner.advance()
        if self.rounds % KEYS_EVERY == 0:
            forget_old_keys()
            forget_old_deliveries()
        self.rounds += 1
        ClockBeat.objects.update_or_create(pk=1, defaults={"leader": self.name, "beat_at": database_time()})
        return True


def _lead() -> bool:
    """Hold the leader's lock, or take it if it is free. A session that holds it already is asked, not locked again."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND pid = pg_backend_pid())"
            " OR pg_try_advisory_lock(%s)",
            [LEADER_LOCK, LEADER_LOCK],
        )
        return bool(cursor.fetchone()[0])
