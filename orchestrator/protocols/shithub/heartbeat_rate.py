"""Limits the heartbeats of a runner: 60 in a window of 60 seconds, over all processes (contract 2.0)."""

import logging
from typing import Final

from django.db import DatabaseError, InterfaceError

from orchestrator.http.errors.problems import ApiError
from orchestrator.limits import throttles
from orchestrator.limits.throttles import Window, WindowState
from runtime_jobs.db_errors import log_level_of

log = logging.getLogger(__name__)

LIMIT: Final = 60
WINDOW_SECONDS: Final = 60

HEARTBEATS: Final = "runner_heartbeats"


def rate_headers(state: WindowState) -> dict[str, str]:
    """Return the headers of every response that the limit concerns."""
    return {
        "X-RateLimit-Limit": str(LIMIT),
        "X-RateLimit-Remaining": str(max(0, LIMIT - int(state.number))),
        "X-RateLimit-Reset": str(int(state.seconds_left)),
    }


def count_heartbeat(runner_id: int) -> dict[str, str]:
    """Count one heartbeat, and return the headers of its response. Call this outside of a transaction.

    An error of the database lets the heartbeat through: a limit must not stop runners.

    Raises:
        ApiError: 429; the runner has sent `LIMIT` heartbeats in this window.
    """
    try:
        (state,) = throttles.count([Window(HEARTBEATS, str(runner_id), WINDOW_SECONDS)])
    except (DatabaseError, InterfaceError) as error:
        log.log(log_level_of(error), "a heartbeat was not counted: %s", type(error).__name__)
        state = WindowState(1, WINDOW_SECONDS)
    headers = rate_headers(state)
    if state.number > LIMIT:
        detail = f"A runner may send {LIMIT} heartbeats in {WINDOW_SECONDS} seconds."
        raise ApiError(429, "rate_limited", detail, headers=headers | {"Retry-After": headers["X-RateLimit-Reset"]})
    return headers
