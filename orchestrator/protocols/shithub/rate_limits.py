"""Limits the heartbeats of a runner: 60 in a window of 60 seconds, over all processes (contract 2.0)."""

import logging
from dataclasses import dataclass
from typing import Final

from django.db import DatabaseError, InterfaceError

from orchestrator.http.errors.problems import ApiError
from runtime_jobs.db_errors import log_level_of
from runtime_jobs.prepared_queries import fetch_all

log = logging.getLogger(__name__)

LIMIT: Final = 60
WINDOW_SECONDS: Final = 60

_COUNT: Final = """
INSERT INTO actions_heartbeat_windows AS w (runner_id, started_at, number) VALUES (%s, clock_timestamp(), 1)
    ON CONFLICT (runner_id) DO UPDATE SET
        number = CASE WHEN w.started_at + %s * interval '1 second' > clock_timestamp() THEN w.number + 1 ELSE 1 END,
        started_at = CASE WHEN w.started_at + %s * interval '1 second' > clock_timestamp()
                          THEN w.started_at ELSE clock_timestamp() END
RETURNING number, extract(epoch FROM started_at + %s * interval '1 second' - clock_timestamp())::float8
"""


@dataclass(frozen=True)
class WindowState:
    """The window after a heartbeat.

    Attributes:
        number: The heartbeats in the window, this one included.
        seconds_left: Seconds until the window ends.
    """

    number: int
    seconds_left: float

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every response that the limit concerns."""
        return {
            "X-RateLimit-Limit": str(LIMIT),
            "X-RateLimit-Remaining": str(max(0, LIMIT - self.number)),
            "X-RateLimit-Reset": str(int(self.seconds_left)),
        }


def count_heartbeat(runner_id: int) -> WindowState:
    """Count one heartbeat. Call this outside of a transaction.

    An error of the database lets the heartbeat through: a limit must not stop runners.

    Raises:
        ApiError: 429; the runner has sent `LIMIT` heartbeats in this window.
    """
    try:
        ((number, seconds),) = fetch_all(_COUNT, [runner_id, WINDOW_SECONDS, WINDOW_SECONDS, WINDOW_SECONDS])
    except (DatabaseError, InterfaceError) as error:
        log.log(log_level_of(error), "a heartbeat was not counted: %s", type(error).__name__)
        return WindowState(1, WINDOW_SECONDS)
    state = WindowState(number, max(0.0, min(seconds, WINDOW_SECONDS)))
    if number > LIMIT:
        detail = f"A runner may send {LIMIT} heartbeats in {WINDOW_SECONDS} seconds."
        raise ApiError(429, "rate_limited", detail, headers=state.headers | {"Retry-After": str(int(seconds))})
    return state
