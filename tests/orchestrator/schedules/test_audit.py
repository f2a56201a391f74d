"""The invariants of schedules and bulk actions find each planted fault."""

import pytest

from orchestrator.audit.runner import run_audit
from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.schedules.models import ScheduleTick
from tests.factories import ProjectFactory, submitted
from tests.orchestrator.bulk_actions.world import finish, start
from tests.orchestrator.schedules.world import NOON, make_schedule, run_round

pytestmark = pytest.mark.django_db


def broken():
    return [finding.code for finding in run_audit()]


@pytest.fixture
def tick(db):
    run_round(make_schedule().next_at)
    assert broken() == []
    return ScheduleTick.objects.get()


@pytest.fixture
def action(db):
    project = ProjectFactory()
    submitted(project)
    row = finish(start(project.organization))
    assert broken() == []
    return row


def test_a_job_of_two_times_is_found(tick):
    ScheduleTick.objects.create(schedule=tick.schedule, due_at=NOON, outcome="submitted", job_ulid=tick.job_ulid)
    assert broken() == ["S1"]


def test_a_refused_time_with_a_job_is_found(tick):
    ScheduleTick.objects.update(outcome="refused")
    assert broken() == ["S2"]


def test_a_counter_that_is_not_that_of_the_targets_is_found(action):
    BulkAction.objects.update(done=0)
    assert broken() == ["B1"]


def test_a_pending_target_of_a_completed_action_is_found(action):
    BulkAction.objects.update(done=0)
    BulkTarget.objects.update(outcome="pending")
    assert broken() == ["B2"]
