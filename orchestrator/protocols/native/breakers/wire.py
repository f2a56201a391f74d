"""JSON of breakers. Pure functions: they run no query."""

from typing import Any

from leases.models import Breaker, BreakerState
from orchestrator.core.datetimes import format_timestamp


def serialize_breaker(breaker: Breaker) -> dict[str, Any]:
    """Return a breaker."""
    is_open = breaker.state == BreakerState.OPEN
    return {
        "org_slug": breaker.org_slug,
        "job_type": breaker.job_type,
        "state": breaker.state,
        "opened_at": None if breaker.state == BreakerState.CLOSED else format_timestamp(breaker.opened_at),
        "next_probe_at": format_timestamp(breaker.cool_until) if is_open else None,
    }
