"""Job updates between processes: the ids of jobs whose log grew or that ended, announced with NOTIFY after the commit.

An announcement is a hint and may be lost. Every subscriber therefore also polls the database at intervals.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from orchestrator.notifications.listener import send_notification

log = logging.getLogger(__name__)

CHANNEL = "job_updates"  # the payload: job ids, separated by commas
ANNOUNCE_INTERVAL = 0.1  # seconds at least between two announcements of a process
IDS_PER_PAYLOAD = 200  # 31 bytes each; PostgreSQL accepts payloads below 8,000 bytes
MAX_PENDING = 10_000


class Announcer:
    """Collects job ids from any thread and announces them from one background thread.

    NOTIFY takes a lock of the whole cluster at commit. Inside the transaction of a log chunk that lock would last until
    the commit is flushed to disk. A transaction that only notifies flushes nothing, and ten of them a second are enough
    for any number of chunks.
    """

    def __init__(self, send: Callable[[str, str], None] = send_notification) -> None:
        self._send = send
        self._pending: dict[str, None] = {}
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def announce(self, job_ids: Iterable[str]) -> None:
        """Queue ids for the next announcement. Returns immediately and never raises.

        Args:
            job_ids: Ids of jobs with new log chunks or a final state, after the commit.
        """
        with self._condition:
            for job_id in job_ids:
                if len(self._pending) >= MAX_PENDING:
                    break  # followers of the other jobs find the change at their next re-check
                self._pending[job_id] = None
            if self._pending and (self._thread is None or not self._thread.is_alive()):  # also after a fork
                self._thread = threading.Thread(target=self._run, name="job-updates", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._pending)
                found, self._pending = list(self._pending), {}
            try:
                for payload in _payloads(found):
                    self._send(CHANNEL, payload)
            except Exception as error:  # noqa: BLE001 announcements are hints: the thread must continue
                log.debug("%d job updates were not announced: %s", len(found), type(error).__name__)
            time.sleep(ANNOUNCE_INTERVAL)


def _payloads(job_ids: list[str]) -> Iterator[str]:
    for start in range(0, len(job_ids), IDS_PER_PAYLOAD):
        yield ",".join(job_ids[start : start + IDS_PER_PAYLOAD])


def parse_job_ids(payload: str) -> list[str]:
    """Return the job ids of an announcement's payload."""
    return payload.split(",")


announcer = Announcer()
