"""Timestamps of the APIs: RFC 3339 with an offset, both read and written."""

import re
from datetime import UTC, datetime

from django import forms
from django.core.exceptions import ValidationError
from django_filters import IsoDateTimeFilter

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
INVALID_TIMESTAMP = "Must be an RFC 3339 timestamp with an offset, such as 2026-03-17T20:03:20Z."


def parse_timestamp(text: object) -> datetime | None:
    """Return the timestamp in UTC, or None for an invalid one.

    PostgreSQL does not parse it: PostgreSQL accepts fewer offsets than RFC 3339.
    """
    if not isinstance(text, str) or not _RFC_3339.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_timestamp(timestamp: datetime | None) -> str | None:
    """Return the timestamp as RFC 3339 in UTC, or None for None."""
    return None if timestamp is None else timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z")


class QueryTimestampField(forms.Field):
    """Form field of `TimestampFilter`."""

    def to_python(self, value: object) -> datetime | None:
        if value in self.empty_values:
            return None
        timestamp = parse_timestamp(value)
        if timestamp is None:
            raise ValidationError(INVALID_TIMESTAMP)
        return timestamp


class TimestampFilter(IsoDateTimeFilter):
    """Filters a list by a timestamp."""

    field_class = QueryTimestampField
