"""Payloads of `export` jobs that ask for an audit bundle. The server executes them, and workers all other exports.

{"format": "audit-bundle", "since": "2026-03-01T00:00:00Z", "until": "2026-04-01T00:00:00Z"}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

FORMAT: Final = "format"
AUDIT_BUNDLE: Final = "audit-bundle"
BUNDLE_NAME: Final = "audit-bundle.tar.gz"  # of the artifact
_MEMBERS: Final = frozenset({FORMAT, "since", "until"})
_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True)
class ExportPeriod:
    """The time that a bundle covers. `until` is None: up to the submit of the job."""

    since: datetime
    until: datetime | None


def is_audit_bundle(payload: Mapping[str, Any]) -> bool:
    """Return whether the payload of an `export` job asks for an audit bundle."""
    return payload.get(FORMAT) == AUDIT_BUNDLE


def bundle_errors(payload: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a payload that asks for an audit bundle."""
    unknown = sorted(set(payload) - _MEMBERS)
    errors = [f"{name}: an audit bundle has no such member." for name in unknown]
    since, until = _timestamp(payload.get("since")), _timestamp(payload.get("until"))
    if since is None:
        errors.append("since: an RFC 3339 timestamp with an offset is needed, such as 2026-03-17T20:03:20Z.")
    if until is None and payload.get("until") is not None:
        errors.append("until: must be an RFC 3339 timestamp with an offset, or be left out.")
    if since is not None and until is not None and since >= until:
        errors.append("since: must be before `until`.")
    return errors


def export_period(payload: Mapping[str, Any]) -> ExportPeriod:
    """Return the time that a valid payload names.

    Raises:
        ValueError: The payload is not valid.
    """
    since = _timestamp(payload.get("since"))
    if since is None:
        raise ValueError("since: a timestamp is needed.")
    return ExportPeriod(since, _timestamp(payload.get("until")))


def _timestamp(text: Any) -> datetime | None:
    if not isinstance(text, str) or not _RFC_3339.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
