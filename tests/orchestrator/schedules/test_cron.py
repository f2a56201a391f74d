"""Times of cron expressions: five fields, time zones, both changes of the clock, and expressions that never fire."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.schedules.cron import CronError, CronTimes
from runtime_jobs.workflows.schedules import CronSchedule

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BERLIN = "Europe/Berlin"


def times(expression, zone="UTC"):
    return CronTimes.parse(expression, zone, now=NOW)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_time_is_that_of_the_zone():
    found = times("30 3 * * MON-FRI", BERLIN)
    assert found.upcoming(at("2026-03-26T12:00"), 3) == [
        at("2026-03-27T02:30"), at("2026-03-30T01:30"), at("2026-03-31T01:30"),
    ]  # fmt: skip
    assert times("0 0 * * *", "Asia/Kolkata").next_after(NOW) == at("2026-01-01T18:30")


def test_a_time_that_the_change_to_summer_leaves_out_is_the_end_of_the_change():
    """On 29 March 2026 the clocks of Berlin go from 02:00 to 03:00."""
    found = times("30 2 * * *", BERLIN)
    assert found.upcoming(at("2026-03-28T12:00"), 2) == [at("2026-03-29T01:00"), at("2026-03-30T00:30")]
    every_hour = times("0 * * * *", BERLIN)
    assert every_hour.upcoming(at("2026-03-29T00:00"), 2) == [at("2026-03-29T01:00"), at("2026-03-29T02:00")]


def test_a_time_that_the_change_to_winter_repeats_counts_once():
    """On 25 October 2026 the clocks of Berlin go from 03:00 to 02:00."""
    found = times("30 2 * * *", BERLIN)
    assert found.upcoming(at("2026-10-24T12:00"), 2) == [at("2026-10-25T00:30"), at("2026-10-26T01:30")]
    # A process that starts in the second passage of the hour does not fire again.
    assert found.next_after(at("2026-10-25T01:15")) == at("2026-10-26T01:30")
    every_half_hour = times("*/30 * * * *", BERLIN)
    passed = every_half_hour.upcoming(at("2026-10-24T23:45"), 4)
    assert passed == [at("2026-10-25T00:00") + timedelta(minutes=30 * number) for number in range(4)]


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30 FEB *", "0 0 31 4,6,9,11 *"])
def test_an_expression_that_never_fires_is_refused(expression):
    with pytest.raises(CronError) as refusal:
        times(expression)
    assert refusal.value.field == "cron"


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "* * * * * *", "@reboot", "@Daily @daily", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "*/0 * * * *",
     "*/61 * * * *", "1-5/61 * * * *", "0 */25 * * *", "0 0 */32 * *", "0 0 1 */13 *", "0 0 * * */8", "*/061 * * * *",
     "5-1 * * * *", "a * * * *", "* * * * MON#6", "-1 * * * *", "1,, * * * *", "\u0661 * * * *", "9" * 150 + " * * * *"],
)  # fmt: skip
def test_a_wrong_expression_is_refused(expression):
    with pytest.raises(CronError) as refusal:
        times(expression)
    assert refusal.value.field == "cron"


@pytest.mark.parametrize(
    "zone", ["", "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "europe/berlin", "UTC\0", "localtime", "Factory"]
)
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(CronError) as refusal:
        times("* * * * *", zone)
    assert refusal.value.field == "time_zone"


def test_a_word_is_the_expression_that_cron_reads_for_it():
    words = {
        "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *", "@midnight": "0 0 * * *", " @Hourly ": "0 * * * *",
    }  # fmt: skip
    for word, expression in words.items():
        found = times(word, BERLIN)
        assert found.expression == word.strip().lower()
        assert found.upcoming(NOW, 3) == times(expression, BERLIN).upcoming(NOW, 3)
        schedule = CronSchedule.parse(word)
        assert schedule.source == word.strip().lower()
        assert schedule.next_after(NOW) == CronSchedule.parse(expression).next_after(NOW)


def test_days_that_few_years_have_are_found():
    assert times("0 0 29 2 *").upcoming(NOW, 2) == [at("2028-02-29T00:00"), at("2032-02-29T00:00")]
    assert times("0 12 LW * *").next_after(NOW) == at("2026-01-30T12:00")


def test_the_last_times_are_those_of_a_walk_from_the_beginning():
    found = times("17 */5 * * *", BERLIN)
    since, until = at("2026-03-20T00:00"), at("2026-11-02T09:17")
    walked = [time for time in found.upcoming(since - timedelta(seconds=1), 2000) if time <= until]
    for count in (1, 3, 100, 5000):
        assert found.last(count, since=since, until=until) == walked[-count:]
    assert found.last(5, since=until, until=until - timedelta(days=1)) == []


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "15 1-3 * * *", "0 0 1 * *", "0 2,3 * * SUN"]),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "America/Havana"]),
    st.integers(0, 2 * 365 * 24 * 60),
)
def test_times_rise_and_each_follows_the_one_before(expression, zone, minutes):
    found, start = CronTimes(expression, zone), NOW + timedelta(minutes=minutes)
    walked = found.upcoming(start, 6)
    assert walked == sorted(set(walked))
    assert walked[0] > start
    # The scheduler continues at the time before: it finds the same times, however it came there.
    for before, following in pairwise(walked):
        assert found.next_after(before) == following
