"""A background thread that announces items to other processes after the commit, few times however many items there are.

NOTIFY takes a lock of the whole cluster at commit. Inside the transaction of an operation that lock would last until
the commit is flushed to disk, and operations of several clients would wait for each other's flush. A transaction that
only notifies flushes nothing.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

MAX_PENDING = 10_000
FLUSH_SECONDS = 1.0  # for the last announcement of a process that ends


class Announcer:
    """Collects items from any thread and announces them from one background thread, one announcement at a time.

    An announcement is a hint and may be lost: with the process, or because the database does not answer. Whoever waits
    for one therefore also polls the database.
    """

    def __init__(self, name: str, send: Callable[[list[str]], object], *, interval: float) -> None:
        """Create an announcer. Its thread starts with the first item.

        Args:
            name: The name of the thread.
            send: Announces different items. Called in the thread.
            interval: Seconds at least between two announcements.
        """
        self._name = name
        self._send = send
        self._interval = interval
        self._pending: dict[str, None] = {}
        self._is_sending = False
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        atexit.register(self.flush)

    def announce(self, items: Iterable[str]) -> None:
        """Queue items for the next announcement. Returns immediately and never raises.

        Args:
            items: What changed, after the commit. Equal items are announced once.
        """
        with self._condition:
            for item in items:
                if len(self._pending) >= MAX_PENDING:
                    break  # the others are found by polling
                self._pending[item] = None
            if self._pending and (self._thread is None or not self._thread.is_alive()):  # also after a fork
                self._is_sending = False
                try:
                    self._start()
                except RuntimeError as error:  # no memory for a thread, or the interpreter ends
                    log.warning("no thread for announcements: %s", error)
                    self._pending.clear()
            self._condition.notify_all()

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait until everything is announced, for a limited time. Called when the process ends."""
        with self._condition:
            if self._thread is not None and self._thread.is_alive():
                self._condition.wait_for(lambda: not self._pending and not self._is_sending, seconds)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._pending)
                found, self._pending = list(self._pending), {}
                self._is_sending = True
            try:
                self._send(found)
            except Exception as error:  # noqa: BLE001 announcements are hints: the thread must continue
                log.debug("%d %s were not announced: %s", len(found), self._name, type(error).__name__)
            with self._condition:
                self._is_sending = False
                self._condition.notify_all()
            time.sleep(self._interval)
