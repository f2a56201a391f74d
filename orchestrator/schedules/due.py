"""Finds the schedules that are due, and calls the operation for each. Finding takes no lock."""

from datetime import datetime
from typing import Final

from orchestrator.core.row_batches import RowRunner
from orchestrator.schedules.models import Schedule
from orchestrator.schedules.operations import ScheduleSubmitter, submit_due_job
from runtime_jobs.db_time import database_now

# One time of each in a round: a schedule that catches up does not hold up the others, nor the rest of the round.
MAX_SCHEDULES: Final = 100


def submit_due_jobs(rows: RowRunner, *, submitter: ScheduleSubmitter, now: datetime | None = None) -> int:
    """Submit the jobs of the schedules that are due, those first that are due longest. Returns how many ticks.

    Args:
        rows: The runner of the task.
        submitter: What reads the jobs of schedules, by the parser of submits.
        now: The present; by default the time of the database.
    """
    due = Schedule.objects.filter(next_at__lte=now or database_now())
    due = due.exclude(schedule_ulid__in=rows.suspended("schedule_ulid")).order_by("next_at")
    names = list(due.values_list("schedule_ulid", flat=True)[:MAX_SCHEDULES])
    return rows.each(
        submit_due_job,
        ({"schedule_ulid": name} for name in names),
        submitter=submitter,
        now=now,
    )
