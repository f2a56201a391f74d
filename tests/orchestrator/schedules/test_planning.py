"""Which of the times that have passed counts, by the policy for missed times."""

from datetime import timedelta

import pytest

from orchestrator.schedules.cron import CronTimes
from orchestrator.schedules.models import MissedPolicy
from orchestrator.schedules.planning import MAX_CAUGHT_UP, MISSED_AFTER, PlannedTick, plan_tick
from tests.orchestrator.schedules.world import NOON

EACH_MINUTE = CronTimes("* * * * *", "UTC")


def after(minutes, seconds=0):
    return NOON + timedelta(minutes=minutes, seconds=seconds)


@pytest.mark.parametrize("policy", MissedPolicy)
@pytest.mark.parametrize("late", [0, 1, MISSED_AFTER.total_seconds()])
def test_a_time_that_is_a_little_late_is_not_missed(policy, late):
    planned = plan_tick(EACH_MINUTE, policy, first=NOON, now=after(0, late))
    assert planned == PlannedTick(NOON, None, is_first_missed=False, following=after(1))


def test_the_latest_of_missed_times_counts():
    planned = plan_tick(EACH_MINUTE, MissedPolicy.LATEST, first=NOON, now=after(90, 30))
    assert planned == PlannedTick(after(90), after(90), is_first_missed=True, following=after(91))


def test_each_missed_time_counts_the_oldest_first():
    planned = plan_tick(EACH_MINUTE, MissedPolicy.ALL, first=NOON, now=after(5, 30))
    assert planned == PlannedTick(NOON, None, is_first_missed=False, following=after(1))


def test_of_very_many_missed_times_the_last_ones_count():
    now = after(60 * 24 * 400, 30)  # more than a year of minutes
    planned = plan_tick(EACH_MINUTE, MissedPolicy.ALL, first=NOON, now=now)
    oldest = now - timedelta(seconds=30) - timedelta(minutes=MAX_CAUGHT_UP - 1)
    assert planned == PlannedTick(oldest, oldest, is_first_missed=True, following=oldest + timedelta(minutes=1))


def test_skipped_times_end_where_a_time_is_not_missed():
    planned = plan_tick(EACH_MINUTE, MissedPolicy.SKIP, first=NOON, now=after(90, 30))
    assert planned == PlannedTick(None, after(90), is_first_missed=True, following=after(90))
    nightly = CronTimes("0 3 * * *", "UTC")
    first = NOON.replace(hour=3)
    planned = plan_tick(nightly, MissedPolicy.SKIP, first=first, now=NOON)
    assert planned.due is None
    assert planned.following == planned.missed_before == first + timedelta(days=1)


def test_a_single_missed_time_is_submitted_late():
    first = NOON.replace(hour=3)
    planned = plan_tick(CronTimes("0 3 * * *", "UTC"), MissedPolicy.LATEST, first=first, now=NOON)
    assert planned == PlannedTick(first, None, is_first_missed=False, following=first + timedelta(days=1))
