"""Times, identifiers and addresses as people read them. Everything that comes in is escaped."""

import re
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display

_LEASE_ID = re.compile(r"rtl_[0-9a-zA-Z]{26}")
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def format_duration(seconds: float) -> str:
    """A length of time in at most two units: `3 min 12 s`."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit, small, part in _UNITS:
        if seconds >= size:
            rest = int(seconds % size // small)
            return f"{int(seconds // size)} {unit} {rest} {part}" if rest else f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def elapsed(start: datetime | None, end: datetime | None) -> str:
    return format_duration((end - start).total_seconds()) if start and end else "-"


def time_ago(then: datetime | None, now: datetime) -> str:
    return f"{format_duration((now - then).total_seconds())} ago" if then else "never"


def time_until(then: datetime | None, now: datetime) -> str:
    """Also of what is over by a moment: somebody is about to see to it."""
    if then is None:
        return "-"
    return f"in {format_duration((then - now).total_seconds())}" if then > now else "now"


def with_timestamp(text: str, at: datetime | None) -> SafeString:
    """A relative time with the exact one behind it."""
    return format_html('<span class="nowrap" title="{}">{}</span>', format_utc(at), text)


def format_utc(at: datetime | None) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC") if at else "-"


def code(text: object) -> SafeString:
    return format_html('<span class="code">{}</span>', text)


def two_lines(first: object, second: object) -> SafeString:
    return format_html('<span class="two-lines">{}<small>{}</small></span>', first, second)


def link(address: str, text: object) -> SafeString:
    return format_html('<a class="link" href="{}">{}</a>', address, text)


def changelist_url(model: type[Model], **filters: object) -> str:
    """The address of a noun's list, filtered."""
    options = model._meta  # noqa: SLF001 Django's documented way to a model's names
    address = reverse(f"admin:{options.app_label}_{options.model_name}_changelist")
    return f"{address}?{urlencode(filters)}" if filters else address


def change_url(model: type[Model], key: object) -> str:
    options = model._meta  # noqa: SLF001 as above
    return reverse(f"admin:{options.app_label}_{options.model_name}_change", args=[key])


def run_page(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}/"


def without_lease_ids(text: str) -> str:
    """A worker's own words may quote the address that it called. A lease id in it would be a key for every reader."""
    return _LEASE_ID.sub("(a lease)", text)


def as_lines(facts: dict[str, Any]) -> SafeString:
    """A small flat JSON object, a fact a line."""
    lines = ((key.replace("_", " "), without_lease_ids(str(value))) for key, value in facts.items())
    return format_html_join("", '<span class="fact"><small>{}</small> {}</span>', lines)


def time_of(column: str, title: str) -> Any:
    """A column of a page that shows a time to the second, in UTC."""

    @display(description=title)
    def shown_time(_page: Any, row: Model) -> str:
        return format_utc(getattr(row, column))

    return shown_time
