"""Times of a cron expression in a time zone, by the rules of Debian's cron."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from runtime_jobs.workflows.schedules import CRON_WORDS, oversized_step

FIELDS = 5
# `last` reads forward from ever earlier times, so that it reads few times more than it returns.
_LOOKBACKS = tuple(timedelta(hours=hours) for hours in (1, 6, 24, 7 * 24, 31 * 24, 366 * 24))


class CronError(ValueError):
    """A part of a schedule is wrong. `field` is `cron` or `time_zone`."""

    def __init__(self, field: str, message: str) -> None:
        """Keep the name of the field.

        Args:
            field: `cron` or `time_zone`.
            message: What is wrong with the value.
        """
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class CronTimes:
    """The times of a cron expression with five fields, or of a word such as `@daily`.

    A time that a change to summer time leaves out is replaced by the end of the change. A time that a change to winter
    time repeats counts once, the first time. An expression whose minute or hour begins with `*` follows the clock.

    Attributes:
        expression: The expression.
        time_zone: A name of the IANA time zone database.
    """

    expression: str
    time_zone: str

    @classmethod
    def parse(cls, expression: str, time_zone: str, *, now: datetime) -> "CronTimes":
        """Check an expression and a zone.

        Args:
            expression: The expression.
            time_zone: The zone.
            now: The present. After it the expression must have a time.

        Raises:
            CronError: The expression or the zone is wrong, or no time follows within 50 years.
        """
        if time_zone not in _zones():
            raise CronError("time_zone", "Must be a name of the IANA time zone database, such as Europe/Berlin.")
        source = " ".join(expression.split())
        if source.lower() in CRON_WORDS:
            source = source.lower()
        fields = CRON_WORDS.get(source, source).split()
        if len(fields) != FIELDS:
            names = "minute, hour, day of month, month, day of week"
            raise CronError(
                "cron", f"Must have five fields: {names}; or be a word such as @daily; this has {len(fields)}."
            )
        if error := oversized_step(fields):
            raise CronError("cron", f"Is wrong: {error}")
        times = cls(source, time_zone)
        try:
            first = times.next_after(now)
        except CronSimError as error:
            raise CronError("cron", f"Is no cron expression that has a time: {error}.") from None
        if first is None:
            raise CronError("cron", "Never fires: no time follows within 50 years.")
        return times

    def after(self, timestamp: datetime) -> Iterator[datetime]:
        """Yield the times after a timestamp in their order, in UTC."""
        latest = timestamp
        expression = CRON_WORDS.get(self.expression, self.expression)
        for local in CronSim(expression, timestamp.astimezone(self._zone)):
            time = local.astimezone(UTC)
            if time > latest:  # an hour that is repeated begins with times of its first passage
                latest = time
                yield time

    def next_after(self, timestamp: datetime) -> datetime | None:
        """Return the first time after a timestamp, or None if there is none within 50 years."""
        return next(self.after(timestamp), None)

    def upcoming(self, timestamp: datetime, count: int) -> list[datetime]:
        """Return the first times after a timestamp."""
        return list(islice(self.after(timestamp), count))

    def last(self, count: int, *, since: datetime, until: datetime) -> list[datetime]:
        """Return the last times between two timestamps, both included, in their order.

        Args:
            count: How many at most.
            since: The first timestamp.
            until: The last timestamp.
        """
        begin = since - timedelta(seconds=1)
        found: list[datetime] = []
        for lookback in (*_LOOKBACKS, until - begin):
            start = max(begin, until - lookback)
            found = self._between(start, until)
            if len(found) >= count or start == begin:
                break
        return found[-count:]

    def _between(self, start: datetime, until: datetime) -> list[datetime]:
        found = []
        for time in self.after(start):
            if time > until:
                break
            found.append(time)
        return found

    @property
    def _zone(self) -> tzinfo:
        return UTC if self.time_zone == "UTC" else ZoneInfo(self.time_zone)


@cache
def _zones() -> frozenset[str]:
    # Two files are no zones: `localtime` is that of the machine, and `Factory` is that of a machine without one.
    return frozenset(available_timezones() - {"localtime", "Factory"})
