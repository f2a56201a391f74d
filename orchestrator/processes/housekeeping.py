"""The process that executes housekeeping tasks. Any number may run; each has some threads."""

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from django.db import connection

from orchestrator.housekeeping import queue
from orchestrator.housekeeping.queue import ClaimedTask
from orchestrator.housekeeping.registry import KINDS, PermanentFailure, SubjectGone
from orchestrator.maintenance.counters import HOUSEKEEPING_FAILURES, HOUSEKEEPING_RUNS, PendingCounts
from orchestrator.processes import housekeeping_catalogue
from runtime_jobs.db_errors import is_connection_lost, is_database_unavailable, log_level_of

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0  # between two questions for a due task, while there is none
RENEW_SECONDS: Final = 15.0  # between two renewals of the claims; a claim lasts four times as long
STANDING_SECONDS: Final = 600.0  # between two checks that the standing tasks exist
STOP_SECONDS: Final = 20.0  # at the end running tasks have this long; then another process executes them again


class HousekeepingProcess:
    """Claims and executes tasks until `stopping` is set."""

    def __init__(self, *, threads: int, poll_seconds: float = POLL_SECONDS) -> None:
        """Prepare.

        Args:
            threads: The number of tasks that are executed at a time.
            poll_seconds: The time between two questions for a due task, while there is none.
        """
        housekeeping_catalogue.load()
        self.name = f"{socket.gethostname()}:{os.getpid()}"[-100:]
        self.stopping = threading.Event()
        self._threads, self._poll_seconds = threads, poll_seconds
        self._lock = threading.Lock()
        self._running: dict[int, ClaimedTask] = {}

    def run(self) -> None:
        """Execute tasks in threads until `stopping` is set. Tasks that do not end in time are released."""
        threads = [
            threading.Thread(target=self._work, name=f"housekeeping-{number}", daemon=True)
            for number in range(self._threads)
        ]
        self._guarded(queue.create_standing_tasks)
        for thread in threads:
            thread.start()
        checked_at = time.monotonic()
        while not self.stopping.wait(RENEW_SECONDS):
            self._guarded(self._renew)
            if time.monotonic() - checked_at >= STANDING_SECONDS:
                self._guarded(queue.create_standing_tasks)
                checked_at = time.monotonic()
        until = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for task in list(self._running.values()):
            log.warning("%s %s has not ended in time; another process executes it", task.kind, task.subject)
            self._guarded(partial(queue.release_claim, task))
        connection.close()

    def run_due(self, *, now: datetime | None = None) -> int:
        """Execute all tasks that are due, one after another in this thread. Return their number.

        Args:
            now: The present; by default the time of the database.
        """
        queue.create_standing_tasks(now=now)
        number = 0
        while not self.stopping.is_set() and (task := queue.claim_task(self.name, now=now)) is not None:
            self.execute(task, now=now)
            number += 1
        return number

    def execute(self, task: ClaimedTask, *, now: datetime | None = None) -> bool:
        """Execute a claimed task and record its outcome. Return whether it succeeded."""
        counts = PendingCounts()
        counts.add(HOUSEKEEPING_RUNS, task.kind)
        try:
            KINDS[task.kind].run(task.subject)
        except SubjectGone as gone:
            log.info("%s %s: %s; the task is deleted", task.kind, task.subject, gone)
            queue.record_gone(task)
        except Exception as error:
            if is_connection_lost(error):
                connection.close()  # the outcome is recorded on a new one
            is_permanent = isinstance(error, PermanentFailure)
            level = logging.DEBUG if is_database_unavailable(error) else logging.ERROR
            log.log(
                level, "%s %s failed%s", task.kind, task.subject, " for good" if is_permanent else "", exc_info=True
            )
            text = f"{type(error).__name__}: {error}".replace("\0", "")
            jitter = random.uniform(0.75, 1.25)  # noqa: S311 not a secret
            queue.record_failure(task, text, is_permanent=is_permanent, jitter=jitter, now=now)
            counts.add(HOUSEKEEPING_FAILURES, task.kind)
            counts.write()
            return False
        else:
            queue.record_success(task, now=now)
        counts.write()
        return True

    def _work(self) -> None:
        while not self.stopping.is_set():
            if not self._guarded(self._execute_one):
                self.stopping.wait(self._poll_seconds * random.uniform(0.8, 1.2))  # noqa: S311 jitter
        connection.close()

    def _execute_one(self) -> bool:
        """Execute one due task. Returns whether there was one."""
        task = queue.claim_task(self.name)
        if task is None:
            return False
        with self._lock:
            self._running[task.id] = task
        try:
            self.execute(task)
        finally:
            with self._lock:
                self._running.pop(task.id, None)
        return True

    def _renew(self) -> None:
        with self._lock:
            tasks = list(self._running.values())
        if not tasks:
            return
        kept = queue.renew_claims(tasks)
        for task in tasks:
            if task.id not in kept and task.id in self._running:
                log.warning("%s %s was claimed by another process meanwhile", task.kind, task.subject)

    def _guarded(self, step: Callable[[], bool | None]) -> bool:
        """Call a step. Nothing that it raises ends the thread: the database may be back at the next attempt."""
        try:
            return bool(step())
        except Exception as error:
            if is_connection_lost(error):
                log.log(log_level_of(error), "the session has ended: %s", str(error).strip())
            else:
                log.exception("a step of housekeeping failed")
            connection.close()
            return False
