"""Rows of windows that have ended."""

from datetime import datetime

from orchestrator.limits.throttles import ThrottleWindow


def expired_window(number: int, ended_at: datetime) -> ThrottleWindow:
    """Return an unsaved row with a key of this number and a count of 5."""
    ends = dict.fromkeys(("starts_at", "ends_at", "expires_at"), ended_at)
    return ThrottleWindow(key=bytes([number]) * 32, kind="expired", current=5, previous=0, **ends)
