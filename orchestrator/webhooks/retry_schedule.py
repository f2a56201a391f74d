"""When a delivery is tried again after a failure. Pure: the caller passes the jitter."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

# After the first, second, … try of a round. The whole round takes some 28 hours.
PAUSES: Final = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=10),
)
MAX_TRIES: Final = len(PAUSES) + 1
MAX_RETRY_AFTER: Final = timedelta(hours=24)
JITTER: Final = (0.9, 1.1)  # bounds of the factor, so that deliveries that failed together are not repeated together
_SECONDS: Final = re.compile(r"[0-9]{1,9}")


def next_pause(tries: int, *, jitter: float, retry_after: timedelta | None = None) -> timedelta | None:
    """Return the time from a failed try to the next one, or None after the last one.

    Args:
        tries: The failed tries of the round, at least 1.
        jitter: The factor of the pause, within `JITTER`.
        retry_after: The time that the receiver has asked for. A longer one than that of the schedule counts.
    """
    if tries >= MAX_TRIES:
        return None
    pause = PAUSES[tries - 1] * jitter
    return pause if retry_after is None else max(pause, min(retry_after, MAX_RETRY_AFTER))


def parse_retry_after(header: str | None, *, now: datetime) -> timedelta | None:
    """Return the time in a header `Retry-After`, which has seconds or a date; None for no or another text."""
    if header is None:
        return None
    if _SECONDS.fullmatch(header.strip()):
        return timedelta(seconds=int(header))
    try:
        until = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(until - now, timedelta(0))
