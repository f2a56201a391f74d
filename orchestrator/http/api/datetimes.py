"""Times as callers write them: RFC 3339 with an offset, and nothing that only looks like it."""

import re
from datetime import UTC, datetime

from django import forms
from django.core.exceptions import ValidationError
from django_filters import IsoDateTimeFilter

_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
WRONG = "A time as 2026-03-17T20:03:20Z is needed."


def parse_timestamp(text: object) -> datetime | None:
    """The time in UTC, or None for what is none. PostgreSQL is never asked: it knows fewer offsets than RFC 3339."""
    if not isinstance(text, str) or not _FORM.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class QueryTimestampField(forms.Field):
    """For a filter's form."""

    def to_python(self, value: object) -> datetime | None:
        if value in self.empty_values:
            return None
        found = parse_timestamp(value)
        if found is None:
            raise ValidationError(WRONG)
        return found


class TimestampFilter(IsoDateTimeFilter):
    field_class = QueryTimestampField
