"""Formats durations, timestamps, identifiers and addresses. Every value from outside is escaped."""

from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.step_logs.log_tails import redact_lease_ids

NO_VALUE = "-"
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))

# --- durations and timestamps -----------------------------------------------------------------------------------------


def format_duration(seconds: float) -> str:
    """Format a duration in at most two units: `3 min 12 s`."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit, small, part in _UNITS:
        if seconds >= size:
            rest = int(seconds % size // small)
            return f"{int(seconds // size)} {unit} {rest} {part}" if rest else f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def elapsed(start: datetime | None, end: datetime | None) -> str:
    """Format the time between two timestamps."""
    return format_duration((end - start).total_seconds()) if start and end else NO_VALUE


def time_ago(timestamp: datetime | None, now: datetime) -> str:
    """Format the age of a timestamp: `3 min 12 s ago`."""
    return f"{format_duration((now - timestamp).total_seconds())} ago" if timestamp else "never"


def time_until(timestamp: datetime | None, now: datetime) -> str:
    """Format the time until a timestamp. `now` if the scheduler has yet to process it."""
    if timestamp is None:
        return NO_VALUE
    return f"in {format_duration((timestamp - now).total_seconds())}" if timestamp > now else "now"


def with_timestamp(text: str, timestamp: datetime | None) -> SafeString:
    """Add the exact timestamp as a tooltip to a relative time."""
    return format_html('<span class="nowrap" title="{}">{}</span>', format_utc(timestamp), text)


def format_utc(timestamp: datetime | None) -> str:
    """Format a timestamp to the second, in UTC."""
    return timestamp.strftime("%Y-%m-%d %H:%M:%S UTC") if timestamp else NO_VALUE


# --- columns ----------------------------------------------------------------------------------------------------------


def timestamp_column(column: str, title: str) -> Any:
    """Return a display function for a timestamp to the second, in UTC."""

    @display(description=title)
    def formatted_time(_page: Any, row: Model) -> str:
        return format_utc(getattr(row, column))

    return formatted_time


def age_column(column: str, title: str) -> Any:
    """Return a display function for the age of a timestamp, with the timestamp as tooltip."""

    @display(description=title)
    def formatted_age(_page: Any, row: Model) -> SafeString:
        timestamp = getattr(row, column)
        return with_timestamp(time_ago(timestamp, timezone.now()), timestamp)

    return formatted_age


def value_column(column: str, title: str) -> Any:
    """Return a display function for a plain column under another title than the model's."""

    @display(description=title)
    def formatted_value(_page: Any, row: Model) -> str:
        value = getattr(row, column)
        return NO_VALUE if value is None or value == "" else str(value)

    return formatted_value


# --- text -------------------------------------------------------------------------------------------------------------


def humanize(code: str | None) -> str:
    """Turn a code such as `worker_lost` into words."""
    return (code or "").replace("_", " ")


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: `1 process`, `1,200 processes`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def repository_of(job: Any) -> str:
    """Format the repository of a job. A job of type `steps` may have none."""
    return f"{job.repo_owner}/{job.repo_name}" if job.repo_owner and job.repo_name else NO_VALUE


def code(text: object) -> SafeString:
    """Format an identifier in the fixed-width font."""
    return format_html('<span class="code">{}</span>', text)


def two_lines(first: object, second: object) -> SafeString:
    """Format a value with a smaller second line."""
    return format_html('<span class="two-lines">{}<small>{}</small></span>', first, second)


def json_text(value: Any) -> str:
    """Format any value of an event's payload, without lease ids."""
    items = value if isinstance(value, list) else [value]
    return redact_lease_ids(", ".join(_members(item) if isinstance(item, dict) else str(item) for item in items))


def _members(item: dict[str, Any]) -> str:
    return " ".join(f"{humanize(name)} {value}" for name, value in item.items())


def key_value_lines(values: dict[str, Any]) -> SafeString:
    """Format a JSON object with one key per line."""
    lines = ((humanize(key), json_text(value)) for key, value in values.items())
    return format_html_join("", '<span class="fact"><small>{}</small> {}</span>', lines)


# --- links ------------------------------------------------------------------------------------------------------------


def link(address: str, text: object) -> SafeString:
    """Format a link."""
    return format_html('<a class="link" href="{}">{}</a>', address, text)


def changelist_url(model: type[Model], **filters: object) -> str:
    """Return the address of a model's list, with filters."""
    options = model._meta  # noqa: SLF001 Django's documented way to a model's names
    address = reverse(f"admin:{options.app_label}_{options.model_name}_changelist")
    return f"{address}?{urlencode(filters, doseq=True)}" if filters else address


def change_url(model: type[Model], key: object) -> str:
    """Return the address of a row's page."""
    options = model._meta  # noqa: SLF001 as above
    return reverse(f"admin:{options.app_label}_{options.model_name}_change", args=[key])


def run_url(run_id: str) -> str:
    """Return the address of a run's page. An external ingest may use ids that need quoting."""
    return f"/runs/{quote(run_id, safe='')}/"
