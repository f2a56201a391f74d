"""Throttles client networks that send invalid credentials.

After N of them in a minute, the network is refused for the rest of that minute. Each process counts for itself.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable

WINDOW = 60.0  # seconds
MAX_GOOD = 10_000  # credentials remembered in each period; later ones are not, so that memory is bounded


class FailedAuthThrottle:
    """Counts refused credentials by network within the present minute.

    Credentials that were valid in this period or the one before are admitted while another client of the same network,
    such as behind one NAT, is throttled.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, good_seconds: float = WINDOW) -> None:
        self._clock = clock
        self._good_seconds = good_seconds
        self._lock = threading.Lock()
        self._window = self._good_window = 0
        self._refused: Counter[str] = Counter()
        self._good: set[str] = set()
        self._good_before: set[str] = set()

    def wait(self, neighbourhood: str, digest: str, *, limit: int) -> float | None:
        """Return the seconds until this credential may be tried again, or None: now."""
        with self._lock:
            self._turn()
            if self._refused[neighbourhood] < limit or digest in self._good or digest in self._good_before:
                return None
            return WINDOW - self._clock() % WINDOW

    def count(self, neighbourhood: str) -> None:
        with self._lock:
            self._turn()
            self._refused[neighbourhood] += 1

    def accept(self, digest: str) -> None:
        with self._lock:
            self._turn()
            if len(self._good) < MAX_GOOD:
                self._good.add(digest)

    def withdraw(self, digest: str) -> None:
        """Forget that a credential was valid: a public one was used with a wrong secret."""
        with self._lock:
            self._good.discard(digest)
            self._good_before.discard(digest)

    def _turn(self) -> None:
        """Start a new window when the current one has ended, so that nothing grows for long."""
        now = self._clock()
        window, good_window = int(now // WINDOW), int(now // self._good_seconds)
        if window != self._window:
            self._window, self._refused = window, Counter()
        if good_window != self._good_window:
            self._good_before = self._good if good_window == self._good_window + 1 else set()
            self._good_window, self._good = good_window, set()
