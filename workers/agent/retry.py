"""Retries with exponential backoff and jitter, so that workers that lost the same server do not reconnect in step."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from workers.agent.errors import ServerUnreachable, TransientRefusal

logger = logging.getLogger(__name__)

# Without this bound a worker with a wrong token would send one message for ever, and never claim. Only its claims
# report the wrong token to the operator.
MAX_REFUSED_SECONDS = 600.0
MAX_RETRY_AFTER_SECONDS = 60.0
T = TypeVar("T")


class Backoff:
    """The seconds before the next attempt: jitter below a bound that doubles up to `max_seconds`."""

    def __init__(self, first: float = 1.0, max_seconds: float = 30.0) -> None:
        self._first = first
        self._max_seconds = max_seconds
        self._bound = first

    def next(self, retry_after: float | None = None) -> float:
        """Return the next wait; never shorter than the server requested, which counts up to a minute."""
        bound, self._bound = self._bound, min(self._bound * 2, self._max_seconds)
        # Never near zero: full jitter would overload a server that already fails.
        wait = random.uniform(bound / 4, bound)  # noqa: S311 - not a secret
        return max(wait, min(retry_after or 0.0, MAX_RETRY_AFTER_SECONDS))

    def reset(self) -> None:
        self._bound = self._first


class RetryBudget:
    """Waits between attempts. Returns false once `over` is set, or once `seconds` have passed since it was made."""

    def __init__(self, over: threading.Event, seconds: float = float("inf")) -> None:
        self._over = over
        self._until = time.monotonic() + seconds

    def __call__(self, seconds: float) -> bool:
        left = self._until - time.monotonic()
        return left > 0 and not self._over.wait(min(seconds, left))


def retry(call: Callable[[], T], *, budget: Callable[[float], bool], backoff: Backoff | None = None) -> T:
    """Call until there is a response.

    Args:
        call: May be repeated. Only ServerUnreachable and, for MAX_REFUSED_SECONDS, TransientRefusal are retried; every
            other error is raised.
        budget: Waits so many seconds and returns whether to try again.
        backoff: The seconds between attempts.
    """
    backoff = backoff or Backoff()
    refused_at: float | None = None
    while True:
        try:
            return call()
        except (ServerUnreachable, TransientRefusal) as error:
            if isinstance(error, ServerUnreachable):
                refused_at = None
            elif refused_at is None:
                refused_at = time.monotonic()
                logger.warning("request refused: it is sent again error=%r", str(error))
            elif time.monotonic() - refused_at > MAX_REFUSED_SECONDS:
                raise
            if not budget(backoff.next(error.retry_after)):
                raise
