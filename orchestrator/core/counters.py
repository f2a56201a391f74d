"""Counters of `/metrics` that leave no event in the history of a job: the same values from all processes.

A process adds up in memory and writes the sums once a second, so that no call waits for a row that all of them change.
What a process has not written is lost if it is killed.
"""

import atexit
import logging
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django.db import DatabaseError, InterfaceError, connection, transaction

from runtime_jobs.db_errors import log_level_of

log = logging.getLogger(__name__)

WRITE_SECONDS = 1.0

_ADD: Final = """
INSERT INTO metric_counts AS c (name, job_type, detail, org_slug, bound, value)
SELECT name, '', detail, '', 0, value FROM unnest(%s::text[], %s::text[], %s::float8[]) AS added(name, detail, value)
 ORDER BY name, detail
    ON CONFLICT (name, job_type, detail, org_slug, bound) DO UPDATE SET value = c.value + excluded.value"""


@dataclass(frozen=True)
class CounterValue:
    """A counter with the value of its label.

    Attributes:
        name: The name in `metric_counts`, at most 40 characters.
        detail: The value of the label, or empty for a counter without one.
    """

    name: str
    detail: str = ""


REGISTRATIONS: Final = CounterValue("actions_registrations")
HEARTBEAT_CLAIMED: Final = CounterValue("actions_heartbeats", "claimed")
HEARTBEAT_NO_JOB: Final = CounterValue("actions_heartbeats", "no_job")
JWT_ISSUED: Final = CounterValue("actions_jwt", "issued")
JWT_REJECTED: Final = CounterValue("actions_jwt", "rejected")
JWT_REPLAY: Final = CounterValue("actions_jwt", "replay")
SCRUB_REPLACEMENT: Final = CounterValue("actions_scrub_replacements", "server")
CONCURRENCY_QUEUED: Final = CounterValue("actions_concurrency_queued")
STEP_TIMEOUTS: Final = CounterValue("actions_step_timeouts")


def runs_pruned(kind: str) -> CounterValue:
    """Return the counter of what retention has deleted: `chunks`, `blobs`, `runs` or `jwt_used`."""
    return CounterValue("actions_runs_pruned", kind)


class CounterBuffer:
    """Adds up the counters of this process, and writes them in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._pending: Counter[CounterValue] = Counter()
        self._timer: threading.Timer | None = None

    def add(self, values: Iterable[CounterValue], number: int = 1) -> None:
        """Count each value, and write all counters within `WRITE_SECONDS`."""
        with self._lock:
            for value in values:
                self._pending[value] += number
            if self._timer is None and self._pending:
                self._timer = threading.Timer(WRITE_SECONDS, self.write_and_disconnect)
                self._timer.daemon = True
                self._timer.start()

    def write(self) -> None:
        """Write the counters now. They are kept for the next time if the database refuses them.

        A write that another thread has begun is waited for, so that all that was counted before this call is stored.
        """
        with self._writing:
            self._write()

    def _write(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, Counter()
            self._timer = None
        if not pending:
            return
        rows = [(value.name, value.detail, float(number)) for value, number in pending.items()]
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(_ADD, [list(column) for column in zip(*rows, strict=True)])
        except (DatabaseError, InterfaceError) as error:
            log.log(log_level_of(error), "counters could not be written: %s", type(error).__name__)
            for value, number in pending.items():
                self.add([value], number)

    def write_and_disconnect(self) -> None:
        """Write the counters in a thread that nothing waits for, or at the end of the process. Never raises."""
        try:
            self.write()
        except Exception as error:  # noqa: BLE001 the thread has no caller that could handle it
            log.warning("counters could not be written: %s", type(error).__name__)
        finally:
            connection.close()


_buffer = CounterBuffer()
atexit.register(_buffer.write_and_disconnect)


def count(values: Iterable[CounterValue], number: int = 1) -> None:
    """Count each value, once by default. Operations register this for the time after their commit."""
    _buffer.add(values, number)


def write_counts() -> None:
    """Write the counters of this process now, before `/metrics` reads the rows."""
    _buffer.write()
