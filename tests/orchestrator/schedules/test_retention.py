"""Retention of the records of times: 30 days."""

from datetime import timedelta

import pytest

from orchestrator.maintenance.pruning import PruningTask, count_old_rows
from orchestrator.schedules.models import ScheduleTick
from runtime_jobs.db_time import database_now
from tests.orchestrator.schedules.world import make_schedule

pytestmark = pytest.mark.django_db


def test_old_ticks_are_deleted():
    schedule, now = make_schedule(), database_now()
    for days in (29, 31):
        at = now - timedelta(days=days)
        ScheduleTick.objects.create(schedule=schedule, due_at=at, outcome="overlapped", created_at=at)
    assert count_old_rows()["schedule_ticks"] == 1
    assert PruningTask().delete_all()["schedule_ticks"] == 1
    assert ScheduleTick.objects.get().due_at == now - timedelta(days=29)
