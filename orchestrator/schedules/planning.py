"""Decides which time of a schedule counts now, and which times were missed. Pure functions."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orchestrator.schedules.cron import CronTimes
from orchestrator.schedules.models import MissedPolicy

# A time is missed if no process has submitted its job within this time. A stand-by leads after a few seconds.
MISSED_AFTER: Final = timedelta(seconds=60)
MAX_CAUGHT_UP: Final = 100  # jobs for missed times of one schedule


@dataclass(frozen=True)
class PlannedTick:
    """The decision about the times of a schedule that have passed.

    Attributes:
        due: The time for which a job is submitted now, or None.
        missed_before: The times since the one that is due, and before this one, are skipped. None: no time is skipped,
            or all times until now are.
        is_first_missed: Whether the time that is due is skipped.
        following: The next time to decide about, or None. It may have passed, too.
    """

    due: datetime | None
    missed_before: datetime | None
    is_first_missed: bool
    following: datetime | None


def plan_tick(times: CronTimes, policy: MissedPolicy, *, first: datetime, now: datetime) -> PlannedTick:
    """Decide about the times of a schedule that have passed.

    Args:
        times: The times of the schedule.
        policy: The policy for missed times.
        first: The first time about which nothing was decided. It has passed.
        now: The present.
    """
    missed_until = now - MISSED_AFTER
    if first >= missed_until:
        return _planned(times, first, first)
    if policy == MissedPolicy.SKIP:
        following = times.next_after(max(first, missed_until))
        return PlannedTick(None, following, is_first_missed=True, following=following)
    count = MAX_CAUGHT_UP if policy == MissedPolicy.ALL else 1
    caught_up = times.last(count, since=first, until=now)
    return _planned(times, first, caught_up[0] if caught_up else first)


def _planned(times: CronTimes, first: datetime, due: datetime) -> PlannedTick:
    is_first_missed = due > first
    return PlannedTick(due, due if is_first_missed else None, is_first_missed, times.next_after(due))
