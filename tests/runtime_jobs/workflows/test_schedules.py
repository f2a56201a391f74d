"""Cron expressions, and when they fire next."""

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime_jobs.workflows.schedules import CronSchedule, ScheduleError


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2026-05-10 12:00:30", "2026-05-10 12:01"),
        ("* * * * *", "2026-05-10 12:00:00", "2026-05-10 12:01"),
        ("30 4 * * *", "2026-05-10 04:29", "2026-05-10 04:30"),
        ("30 4 * * *", "2026-05-10 04:30", "2026-05-11 04:30"),
        ("*/15 * * * *", "2026-05-10 12:44", "2026-05-10 12:45"),
        ("5/20 * * * *", "2026-05-10 12:26", "2026-05-10 12:45"),
        ("10-12,40 3 * * *", "2026-05-10 03:12", "2026-05-10 03:40"),
        ("0 22-23/1 * * *", "2026-05-10 23:00", "2026-05-11 22:00"),
        ("0 0 1 * *", "2026-12-31 23:59", "2027-01-01 00:00"),
        ("0 0 31 * *", "2026-04-01 00:00", "2026-05-31 00:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00", "2104-02-29 00:00"),
        ("0 0 * * MON", "2026-05-10 00:00", "2026-05-11 00:00"),  # a Sunday
        ("0 0 * * 0", "2026-05-10 00:00", "2026-05-17 00:00"),
        ("0 0 * * 7", "2026-05-09 00:00", "2026-05-10 00:00"),
        ("0 0 * * mon-fri", "2026-05-08 00:00", "2026-05-11 00:00"),
        ("0 0 * JAN,jul *", "2026-05-10 00:00", "2026-07-01 00:00"),
        ("0 0 13 * FRI", "2026-05-10 00:00", "2026-05-13 00:00"),  # either of both days
        ("0 0 13 * FRI", "2026-05-13 00:00", "2026-05-15 00:00"),
        ("0 0 */2 * MON", "2026-05-10 00:00", "2026-05-11 00:00"),  # '*' restricts nothing
        ("59 23 31 12 *", "2026-12-31 23:59", "2027-12-31 23:59"),
    ],
)
def test_a_schedule_fires_next_at(cron, after, expected):
    assert CronSchedule.parse(cron).next_after(at(after)) == at(expected)


def test_times_are_in_utc():
    cron = CronSchedule.parse("0 4 * * *")
    tokyo = timezone(timedelta(hours=9))
    assert cron.next_after(datetime(2026, 5, 10, 12, 0, tzinfo=tokyo)) == at("2026-05-10 04:00")


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("* * * * * *", "five fields"),
        ("@reboot", "five fields"),
        ("*/61 * * * *", r"minute: the step of '\*/61' is larger than 60"),
        ("0 9-17/25 * * *", "hour: the step of '9-17/25' is larger than 24"),
        ("0 0 * * */8", r"day of week: the step of '\*/8' is larger than 7"),
        ("60 * * * *", "minute: '60' is not between 0 and 59"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * 32 * *", "day of month"),
        ("* * * 13 *", "month"),
        ("* * * FOO *", "month"),
        ("* * * * 8", "day of week"),
        ("* * * * JAN", "day of week"),
        ("MON * * * *", "minute"),
        ("5-1 * * * *", "ends before"),
        ("*/0 * * * *", "step"),
        ("*-5 * * * *", "not the beginning of a range"),
        ("1, * * * *", "is not a value"),
        ("-1 * * * *", "is not a value"),
        ("1.5 * * * *", "is not a value"),
        ("٣ * * * *", "is not a value"),
        ("* * L * *", "is not a value"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("* " * 200, "characters"),
    ],
)
def test_what_is_no_schedule_is_refused(cron, message):
    with pytest.raises(ScheduleError, match=message.replace("(", r"\(")):
        CronSchedule.parse(cron)


def test_the_source_has_single_spaces():
    assert CronSchedule.parse(" 0  4 * *\t* ").source == "0 4 * * *"


FIELDS = st.tuples(
    *(
        st.one_of(st.just("*"), st.integers(low, high).map(str), st.integers(1, 9).map("*/{}".format))
        for low, high in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
    )
)
TIMES = st.datetimes(datetime(2001, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 as it requires


def fires(cron, time):
    minute, hour, day, month, weekday = (
        set(values) for values in (cron.minutes, cron.hours, cron.days, cron.months, cron.weekdays)
    )
    on_day, on_weekday = time.day in day, time.isoweekday() % 7 in weekday
    is_on = on_day or on_weekday if cron.is_either_day else on_day and on_weekday
    return time.minute in minute and time.hour in hour and time.month in month and is_on


@given(FIELDS, TIMES)
def test_the_next_time_is_the_first_one(fields, after):
    try:
        cron = CronSchedule.parse(" ".join(fields))
    except ScheduleError:
        assume(False)  # noqa: FBT003 a date that does not exist
    found = cron.next_after(after)
    assert found > after
    assert fires(cron, found)
    minute = timedelta(minutes=1)
    between = after.replace(second=0, microsecond=0) + minute
    for _ in range(200):
        if between >= found:
            break
        assert not fires(cron, between)
        between += minute


@given(st.text(alphabet="0123456789*/-, JANMON", max_size=30))
def test_any_text_is_a_schedule_or_refused(text):
    with contextlib.suppress(ScheduleError):
        CronSchedule.parse(text)
