"""Counts what clients send, over all processes: one row in PostgreSQL for each window.

A window that does not slide begins with the first call that is counted. A window that slides does so approximately: its
periods are fixed, and the count of the last whole period is added by the share of it that is still inside the window.

The callers compare the numbers with their limits, and name what they count by `Window.kind`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from django.db import models
from django.utils.crypto import salted_hmac

from runtime_jobs.prepared_queries import fetch_all

EXPIRED_ROWS_PER_WINDOW: Final = 10  # a call adds a row for each window at most, so that the table cannot grow for long


class ThrottleWindow(models.Model):
    """The calls of one client in one window, or in one period of a sliding window and the period before.

    `key` is a keyed hash. What a client sends is never stored: a name may be a password in the wrong field.
    """

    key = models.BinaryField(max_length=32, primary_key=True)
    kind = models.CharField(max_length=40, help_text="What is counted.")
    current = models.BigIntegerField()
    previous = models.BigIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    expires_at = models.DateTimeField(help_text="From then on the row has no effect.")

    class Meta:
        app_label = "orchestrator"
        db_table = "throttle_windows"
        indexes = [models.Index(fields=["expires_at"], name="throttle_windows_by_age")]

    def __str__(self) -> str:
        return f"{self.kind}: {self.current} until {self.ends_at}"


@dataclass(frozen=True)
class Window:
    """The window in which calls of one kind from one client are counted.

    Attributes:
        kind: What is counted, such as `runner_heartbeats`.
        client: Who sends it, such as an address or the UUID of a runner.
        seconds: The length.
        slides: Whether the window slides.
    """

    kind: str
    client: str
    seconds: int
    slides: bool = False

    @cached_property
    def key(self) -> bytes:
        counted = repr((self.kind, self.client, self.seconds))
        return salted_hmac("orchestrator.throttle_windows", counted, algorithm="sha256").digest()


class WindowState(NamedTuple):
    """The calls in a window, and the seconds until it ends. Of a sliding window its present period ends."""

    number: float
    seconds_left: float

    @property
    def retry_after(self) -> int:
        """The seconds until the window admits a call, if the client sends none before."""
        return max(1, math.ceil(self.seconds_left))


# Rows are locked in the order of their keys by both statements that change them, so that two calls cannot wait for each
# other. A clock that was set back counts in the later window.
_COUNT: Final = """
WITH counted_at AS MATERIALIZED (SELECT coalesce(%s::timestamptz, clock_timestamp()) AS now),
called AS (
    SELECT key, kind, seconds * interval '1 second' AS length, slides,
           CASE WHEN slides THEN to_timestamp(floor(extract(epoch FROM now) / seconds) * seconds) ELSE now END AS start
      FROM unnest(%s::bytea[], %s::text[], %s::int[], %s::bool[])
        AS sent (key, kind, seconds, slides), counted_at)
INSERT INTO throttle_windows AS counted (key, kind, current, previous, starts_at, ends_at, expires_at)
SELECT key, kind, 1, 0, start, start + length, start + CASE WHEN slides THEN 2 ELSE 1 END * length
  FROM called ORDER BY key
ON CONFLICT (key) DO UPDATE SET (current, previous, starts_at, ends_at, expires_at) = (
    SELECT counted.current + 1, counted.previous, counted.starts_at, counted.ends_at, counted.expires_at
     WHERE counted.ends_at > excluded.starts_at
     UNION ALL
    SELECT 1, CASE WHEN counted.ends_at = excluded.starts_at THEN counted.current ELSE 0 END,
           excluded.starts_at, excluded.ends_at, excluded.expires_at
     WHERE counted.ends_at <= excluded.starts_at)
RETURNING key, current, previous, extract(epoch FROM ends_at - (SELECT now FROM counted_at))::float8
"""
_READ: Final = """
SELECT key, current, 0, extract(epoch FROM ends_at - clock_timestamp())::float8
  FROM throttle_windows WHERE key = ANY(%s) AND ends_at > clock_timestamp()
"""
_TAKE_BACK: Final = """
UPDATE throttle_windows SET current = current - 1
 WHERE key = ANY (ARRAY(
    SELECT key FROM throttle_windows WHERE key = ANY(%s) AND current > 0 ORDER BY key FOR UPDATE))
RETURNING key
"""
# An array is read once. Of a subquery in IN (…) a plan may make a loop that finds and locks other rows in each turn.
# `statement_timestamp()` is stable, so the index bounds what is read.
_DELETE_EXPIRED: Final = """
DELETE FROM throttle_windows WHERE key = ANY (ARRAY(
    SELECT key FROM throttle_windows WHERE expires_at < coalesce(%s::timestamptz, statement_timestamp())
     ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED))
RETURNING key
"""


def count(windows: Sequence[Window], *, now: datetime | None = None) -> list[WindowState]:
    """Count one call in each window, and return the windows with this call. Call this outside of a transaction.

    Args:
        windows: The windows. Without any there is no query.
        now: The time of the call; by default that of the database.
    """
    if not windows:
        return []
    columns = [[getattr(window, name) for window in windows] for name in ("key", "kind", "seconds", "slides")]
    rows = fetch_all(_COUNT, [now, *columns])
    if any(current == 1 for _, current, *_ in rows):  # only a new window may have added a row
        fetch_all(_DELETE_EXPIRED, [now, EXPIRED_ROWS_PER_WINDOW * len(windows)])
    return _states(windows, rows)


def read(windows: Sequence[Window]) -> list[WindowState]:
    """Return windows that do not slide, without counting a call."""
    return _states(windows, fetch_all(_READ, [[window.key for window in windows]]))


def take_back(windows: Sequence[Window]) -> None:
    """Take one call out of the count of each window."""
    fetch_all(_TAKE_BACK, [[window.key for window in windows]])


def _states(windows: Sequence[Window], rows: Sequence[Any]) -> list[WindowState]:
    found = {bytes(key): counted for key, *counted in rows}
    states = []
    for window in windows:
        current, previous, seconds = found.get(window.key, (0, 0, 0.0))
        seconds_left = max(0.0, min(seconds, window.seconds))  # a clock may have been set back
        number = current + previous * seconds_left / window.seconds if window.slides else current
        states.append(WindowState(number, seconds_left))
    return states
