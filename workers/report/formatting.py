"""Formats text and times of a trace: shortened, without control characters, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime

# Control characters, lone surrogates, and the marks that change the direction of text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def clean(text: str, limit: int) -> str:
    """Return at most `limit` characters; longer text ends in an ellipsis."""
    text = _UNSAFE.sub("\ufffd", text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def rfc3339(time: float) -> str:
    """Return Unix time as `2026-03-17T20:00:10.123Z`."""
    return datetime.fromtimestamp(max(0.0, time), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def maybe_rfc3339(time: float | None) -> str | None:
    """Return Unix time in the same format, or None."""
    return None if time is None else rfc3339(time)
