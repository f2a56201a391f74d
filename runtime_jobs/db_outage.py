"""Logs outages of the database: one line when it becomes unavailable, one when it can be used again.

Connections report here what they meet, so nothing else logs an outage. Without this, each request, round and attempt to
connect wrote lines of its own: 700 a minute by an idle installation.
"""

import logging
import threading
import time
from collections.abc import Callable

from django.dispatch import Signal

from runtime_jobs.db_errors import fault_of

log = logging.getLogger(__name__)

REPEAT_SECONDS = (
    60.0  # between two lines about a server that accepts connections and fails statements, as on a full disk
)


class Outage:
    """The state of the database as this process has seen it last. Its methods may be called by any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._monotonic = monotonic
        self._since: float | None = None
        self._quiet_until = -REPEAT_SECONDS

    def observe(self, error: BaseException) -> None:
        """Log the begin of an outage. An error that does not say that the database is unavailable has no effect."""
        fault = fault_of(error)
        if fault is None or not fault.is_unavailable:
            return
        now = self._monotonic()
        with self._lock:
            is_news = self._since is None if fault.ends_session else now >= self._quiet_until
            if fault.ends_session:
                self._since = self._since if self._since is not None else now
            elif is_news:
                self._quiet_until = now + REPEAT_SECONDS
        if is_news:
            log.warning("the database is unavailable: %s", " ".join(str(error).split()) or type(error).__name__)

    def end(self) -> None:
        """Log the end of an outage, because a connection was made that can write. Otherwise it has no effect."""
        if self._since is None:  # without the lock: it is so at nearly every call
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            log.warning("the database is available again, after %.1f seconds", self._monotonic() - since)


outage = Outage()
# Sent when a process has opened a session. It may be the first one with another server, on which a key of before may be
# that of another row: a stand-by that has taken over may lack the last rows.
session_opened = Signal()
