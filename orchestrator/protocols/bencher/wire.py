"""Values that several resources serialize in the same way."""

from datetime import UTC, datetime


def timestamp(instant: datetime) -> str:
    """Return a timestamp as RFC 3339 in UTC, in whole seconds, such as `2026-01-01T00:00:00Z`."""
    return instant.astimezone(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def optional_timestamp(instant: datetime | None) -> str | None:
    """Return a timestamp as `timestamp` does, or None."""
    return None if instant is None else timestamp(instant)
