"""Who sends too many bad tokens is not listened to for the rest of the minute. Counted in each process for itself."""

import threading
import time
from collections import Counter
from collections.abc import Callable

WINDOW = 60.0  # seconds


class Refusals:
    """Refused tokens by neighbourhood within the present minute, and the tokens that were good in this minute or the
    one before: those go on counting where somebody else floods, such as behind the same NAT."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._window = 0
        self._refused: Counter[str] = Counter()
        self._good: set[str] = set()
        self._good_before: set[str] = set()

    def wait(self, neighbourhood: str, digest: str, *, limit: int) -> float | None:
        """Seconds until this token may be tried again, or None: now."""
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
            self._good.add(digest)

    def _turn(self) -> None:
        """Start afresh with each minute, so that nothing grows for long."""
        window = int(self._clock() // WINDOW)
        if window == self._window:
            return
        self._good_before = self._good if window == self._window + 1 else set()
        self._window, self._good, self._refused = window, set(), Counter()
