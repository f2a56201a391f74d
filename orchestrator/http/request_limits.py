"""Limits requests per minute, hour and day over all processes: one row in PostgreSQL counts for each window.

A window slides approximately: the count of the last whole period, by the share of it that is still inside the window,
and the count of the current period. A refused request is counted, too (contract 1.4). So a client that never pauses
remains refused.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connection, models
from django.utils.crypto import salted_hmac

from runtime_jobs.db_time import database_now

WINDOWS: Final = {"minute": 60, "hour": 3600, "day": 86_400}  # seconds
EXPIRED_ROWS_PER_REQUEST: Final = 10  # a request adds three rows at most, so that the table cannot grow for long


class RequestWindow(models.Model):
    """The requests of one client in one period and the period before.

    `key` is a keyed hash of the kind of requests, the client and the window.
    """

    key = models.BinaryField(max_length=32, primary_key=True)
    period = models.BigIntegerField(help_text="Number of the current period since the epoch.")
    current = models.BigIntegerField()
    previous = models.BigIntegerField()
    expires_at = models.DateTimeField()

    class Meta:
        app_label = "orchestrator"
        db_table = "request_windows"
        indexes = [models.Index(fields=["expires_at"], name="request_windows_by_age")]

    def __str__(self) -> str:
        return f"{self.current} and {self.previous} until {self.expires_at}"


@dataclass(frozen=True)
class RequestRates:
    """The requests that a client may send in each window; 0 is unlimited."""

    minute: int
    hour: int
    day: int

    def limits(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the limit of each limited window, the shortest first."""
        return ((window, limit) for window in WINDOWS if (limit := getattr(self, window)))


class RequestRateExceeded(Exception):
    """A client sends more requests than a limit allows.

    Attributes:
        window: `minute`, `hour` or `day`.
        limit: The requests that the window allows.
        retry_after: Seconds until the window allows a request, if the client sends none before.
    """

    def __init__(self, window: str, limit: int, retry_after: int) -> None:
        super().__init__(f"{limit} per {window}")
        self.window, self.limit, self.retry_after = window, limit, retry_after


# Rows are locked in the order of their keys, so that two requests cannot wait for each other. A clock that was set back
# counts in the later period.
_COUNT: Final = """
INSERT INTO request_windows AS counted (key, period, current, previous, expires_at)
SELECT key, period, 1, 0, expires_at
  FROM unnest(%s::bytea[], %s::bigint[], %s::timestamptz[]) AS sent (key, period, expires_at) ORDER BY key
ON CONFLICT (key) DO UPDATE SET
    previous = CASE WHEN counted.period >= excluded.period THEN counted.previous
        WHEN counted.period = excluded.period - 1 THEN counted.current ELSE 0 END,
    current = CASE WHEN counted.period >= excluded.period THEN counted.current + 1 ELSE 1 END,
    period = greatest(counted.period, excluded.period),
    expires_at = greatest(counted.expires_at, excluded.expires_at)
RETURNING key, current, previous
"""
_DELETE_EXPIRED: Final = """
DELETE FROM request_windows WHERE key IN (
    SELECT key FROM request_windows WHERE expires_at < %s ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def count_request(kind: str, client: str, rates: RequestRates, *, now: datetime | None = None) -> None:
    """Count a request of a client, and refuse it if a window is full. Call this outside of a transaction.

    Args:
        kind: The kind of requests that are counted together, such as `unclaimed_run`.
        client: The client, such as an address or the UUID of a runner.
        rates: The limits. Without any nothing is stored.

    Raises:
        RequestRateExceeded: A window is full. The request is counted nevertheless.
    """
    limits = dict(rates.limits())
    if not limits:
        return
    counted_at = now or database_now()
    timestamp = counted_at.timestamp()
    keys = {_key(kind, client, window): window for window in limits}
    periods = [int(timestamp // WINDOWS[window]) for window in keys.values()]
    # The count of a period has no effect after the period that follows.
    ends = [(period + 2) * WINDOWS[window] for period, window in zip(periods, keys.values(), strict=True)]
    expiries = [datetime.fromtimestamp(end, counted_at.tzinfo) for end in ends]
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, [list(keys), periods, expiries])
        counts = {keys[bytes(key)]: (current, previous) for key, current, previous in cursor.fetchall()}
        cursor.execute(_DELETE_EXPIRED, [counted_at, EXPIRED_ROWS_PER_REQUEST])
    for window, limit in limits.items():
        seconds = WINDOWS[window]
        elapsed = timestamp % seconds
        current, previous = counts[window]
        if current + previous * (1 - elapsed / seconds) > limit:
            raise RequestRateExceeded(window, limit, max(1, math.ceil(seconds - elapsed)))


def _key(*parts: str) -> bytes:
    return salted_hmac("orchestrator.request_windows", repr(parts), algorithm="sha256").digest()
