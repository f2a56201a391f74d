"""How text and times from a trace are written down: cut, without what could play tricks on a reader, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime

# Control characters, lone surrogates, and the marks that turn the direction of text around.
_TRICKS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def clean(text: str, limit: int) -> str:
    """At most `limit` characters; longer text ends in an ellipsis."""
    text = _TRICKS.sub("\ufffd", text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def rfc3339(time: float) -> str:
    """Unix time as `2026-03-17T20:00:10.123Z`."""
    return datetime.fromtimestamp(max(0.0, time), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def maybe_rfc3339(time: float | None) -> str | None:
    return None if time is None else rfc3339(time)
