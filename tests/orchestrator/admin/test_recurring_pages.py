"""The pages *Schedules* and *Bulk actions*: buttons are operations, and leave an event with a reason."""

import re

import pytest

from orchestrator.bulk_actions.models import BulkAction
from orchestrator.schedules.models import Schedule
from runtime_jobs.models import Job, OperatorEvent
from tests.factories import OrganizationFactory, ProjectFactory, submitted
from tests.orchestrator.admin.pages import address
from tests.orchestrator.bulk_actions.world import start
from tests.orchestrator.schedules.world import make_schedule, run_round

pytestmark = pytest.mark.django_db
WHY = {"reason": "the advisory of today"}


def press(client, row, name, form=WHY):
    return client.post(address(type(row), name, row.pk), form)


def last_event():
    event = OperatorEvent.objects.latest("pk")
    return event.action, event.actor, event.reason


@pytest.fixture
def schedule(db):
    return make_schedule(name="nightly")


def test_a_schedule_is_paused_resumed_run_and_deleted(olga, schedule):
    for name, status in (("pause", "paused"), ("resume", "active")):
        assert press(olga, schedule, name).status_code == 302
        schedule.refresh_from_db()
        assert schedule.status == status
        assert last_event() == ("schedule.changed", "operator:olga", WHY["reason"])
    assert press(olga, schedule, "run_now").status_code == 302
    job = Job.objects.get()
    assert (job.trigger_kind, job.trigger_actor) == ("manual", "olga")
    page = olga.get(address(Schedule, "change", schedule.pk)).content.decode()
    assert job.job_ulid in page
    assert press(olga, schedule, "remove").status_code == 302
    assert not Schedule.objects.exists()
    assert last_event() == ("schedule.deleted", "operator:olga", WHY["reason"])


def test_the_page_displays_next_times_and_what_became_of_the_last(olga, schedule):
    run_round(schedule.next_at)
    page = olga.get(address(Schedule, "change", schedule.pk)).content.decode()
    assert len(re.findall(r"<p>[-\d]{10} \d\d:\d\d:00 UTC</p>", page)) == 5, "a line for each time"
    assert "2026-05-11 12:01:00 UTC: submitted" in page
    assert Job.objects.get().job_ulid in page
    listed = olga.get(address(Schedule, "changelist")).content.decode()
    assert "nightly" in listed
    assert "submitted" in listed


def test_a_bulk_action_is_aborted(olga, viewer):
    project = ProjectFactory(organization=OrganizationFactory(slug="acme"))
    submitted(project)
    row = start(project.organization)
    assert "0 of 1 (0 %)" in olga.get(address(BulkAction, "changelist")).content.decode()
    assert press(viewer, row, "abort").status_code in {302, 403}
    row.refresh_from_db()
    assert row.status == "pending"
    assert press(olga, row, "abort").status_code == 302
    row.refresh_from_db()
    assert row.status == "aborted"
    assert last_event() == ("bulk_action.aborted", "operator:olga", WHY["reason"])


def test_no_button_works_without_a_permission(viewer, schedule):
    for name in ("pause", "run_now", "remove"):
        assert press(viewer, schedule, name).status_code in {302, 403}
    schedule.refresh_from_db()
    assert schedule.status == "active"
    assert not Job.objects.exists()
