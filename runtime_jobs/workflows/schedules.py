"""Schedules of workflows: cron expressions of five fields, or words for them, in UTC."""

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MAX_SOURCE = 200  # characters
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_PART = re.compile(
    r"(?P<first>\*|[0-9]{1,2}|[A-Za-z]{3})(?:-(?P<last>[0-9]{1,2}|[A-Za-z]{3}))?(?:/(?P<step>[0-9]{1,2}))?"
)
_YEARS_AHEAD = 41  # a Monday that is a 29 February is missing for 40 years around 2100


class ScheduleError(ValueError):
    """The text is no cron expression, or names a date that does not exist."""


@dataclass(frozen=True)
class _CronField:
    """One of the five fields: its name, its range, and names that may replace numbers from `low`."""

    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()


# What cron reads for these words.
CRON_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_STEP = re.compile(r"/0*([0-9]+)\Z", re.ASCII)

_FIELDS = (
    _CronField("minute", 0, 59),
    _CronField("hour", 0, 23),
    _CronField("day of month", 1, 31),
    _CronField("month", 1, 12, _MONTHS),
    _CronField("day of week", 0, 7, _WEEKDAYS),  # 0 and 7 are Sunday
)


@dataclass(frozen=True)
class CronSchedule:
    """A cron expression.

    If both the day of month and the day of week are restricted, a day that is one of both is meant, as in cron.

    Attributes:
        source: The text, with single spaces.
        minutes: The minutes of an hour, in order.
        hours: The hours of a day, in order.
        days: The days of a month.
        months: The months of a year.
        weekdays: The days of a week; Sunday is 0.
        is_either_day: Both kinds of days are restricted.
    """

    source: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_either_day: bool

    @classmethod
    def parse(cls, text: str) -> "CronSchedule":
        """Read a cron expression.

        Raises:
            ScheduleError: The text is no cron expression, or never fires.
        """
        if len(text) > MAX_SOURCE:
            raise ScheduleError(f"The schedule has {len(text)} characters. At most {MAX_SOURCE} are allowed.")
        source = " ".join(text.split())
        if source.lower() in CRON_WORDS:
            source = source.lower()
        parts = CRON_WORDS.get(source, source).split()
        if len(parts) != len(_FIELDS):
            raise ScheduleError(
                f"A schedule has five fields: {', '.join(field.name for field in _FIELDS)}. This one has {len(parts)}."
            )
        if error := oversized_step(parts):
            raise ScheduleError(error)
        minutes, hours, days, months, weekdays = (
            _values(part, field) for part, field in zip(parts, _FIELDS, strict=True)
        )
        schedule = cls(
            source=source,
            minutes=tuple(sorted(minutes)),
            hours=tuple(sorted(hours)),
            days=days,
            months=months,
            weekdays=frozenset(day % 7 for day in weekdays),
            is_either_day=not parts[2].startswith("*") and not parts[4].startswith("*"),
        )
        if schedule.next_after(datetime(2000, 1, 1, tzinfo=UTC)) is None:
            raise ScheduleError("The schedule never fires: no month has such a day.")
        return schedule

    def next_after(self, timestamp: datetime) -> datetime | None:
        """Return the first minute after a timestamp at which the schedule fires, or None if there is none."""
        start = timestamp.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        year, month = start.year, start.month
        for _ in range(12 * _YEARS_AHEAD):
            if month in self.months and (found := self._first_in(year, month, start)):
                return found
            year, month = (year + 1, 1) if month == 12 else (year, month + 1)
        return None

    def _first_in(self, year: int, month: int, start: datetime) -> datetime | None:
        first_weekday, day_count = calendar.monthrange(year, month)  # 0 is Monday
        for day in range(1, day_count + 1):
            if not self._is_on(day, (first_weekday + day) % 7):
                continue
            midnight = datetime(year, month, day, tzinfo=UTC)
            if midnight + timedelta(days=1) <= start:
                continue
            times = (midnight.replace(hour=hour, minute=minute) for hour in self.hours for minute in self.minutes)
            found = next((time for time in times if time >= start), None)
            if found is not None:
                return found
        return None

    def _is_on(self, day: int, weekday: int) -> bool:
        if self.is_either_day:
            return day in self.days or weekday in self.weekdays
        return day in self.days and weekday in self.weekdays


def oversized_step(parts: Sequence[str]) -> str | None:
    """Return the error of the first step that is larger than its field, or None. Such a step has no effect in cron.

    Args:
        parts: The five fields.
    """
    for field, text in zip(_FIELDS, parts, strict=True):
        size = len(field.words) or field.high - field.low + 1
        for part in text.split(","):
            found = _STEP.search(part)
            if found is not None and (len(found[1]) > 2 or int(found[1]) > size):
                return f"{field.name}: the step of {part[:20]!a} is larger than {size}."
    return None


def _values(text: str, field: _CronField) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        found = _PART.fullmatch(part)
        if found is None:
            raise ScheduleError(f"{field.name}: {part!a} is not a value, a range, or '*' with an optional step.")
        first, last, step = found["first"], found["last"], found["step"]
        if first == "*":
            if last is not None:
                raise ScheduleError(f"{field.name}: '*' is not the beginning of a range.")
            low, high = field.low, field.high
        else:
            low = _number(first, field)
            high = _number(last, field) if last else field.high if step else low
        if high < low:
            raise ScheduleError(f"{field.name}: the range {part!a} ends before it begins.")
        if step is not None and int(step) == 0:
            raise ScheduleError(f"{field.name}: the step of {part!a} is 0. Use a step from 1.")
        values.update(range(low, high + 1, int(step or 1)))
    return frozenset(values)


def _number(text: str, field: _CronField) -> int:
    word = text.upper()
    if word in field.words:
        return field.low + field.words.index(word)
    if not text.isdigit() or not field.low <= int(text) <= field.high:
        raise ScheduleError(f"{field.name}: {text!a} is not between {field.low} and {field.high}.")
    return int(text)
