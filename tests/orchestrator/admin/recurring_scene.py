"""Schedules and bulk actions for the pictures of the admin, made by the operations."""

from datetime import timedelta

from orchestrator.bulk_actions.execution import advance_bulk_action
from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.bulk_actions.operations import abort_bulk_action, start_bulk_action
from orchestrator.bulk_actions.targets import store_targets
from orchestrator.core.cause import Cause
from orchestrator.schedules.models import Schedule
from orchestrator.schedules.operations import change_schedule
from orchestrator.services import cancellation
from orchestrator.services.submission import submit
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, Organization, Project
from runtime_jobs.specs import configured_policy
from tests.factories import ALICE, steps_spec, submission
from tests.orchestrator.schedules.world import JOB, make_schedule, run_round


def recurring_morning() -> tuple[Schedule, BulkAction]:
    """A schedule that was late, overlapped and was refused; one that is paused; two bulk actions, one half done."""
    sandtrace, acme = (Organization.objects.get(slug=slug) for slug in ("sandtrace", "acme-labs"))
    now = database_now().replace(second=0, microsecond=0)
    begin = now - timedelta(minutes=95)
    schedule = make_schedule(
        sandtrace, name="advisories of the last quarter hour", cron="*/15 * * * *", overlap="skip", now=begin,
        time_zone="Europe/Berlin",
    )  # fmt: skip
    for minutes in (60, 45, 30, 15):
        at = now - timedelta(minutes=minutes)
        run_round(at - timedelta(minutes=at.minute % 15) + timedelta(seconds=2))
        if minutes == 45:
            last = Job.objects.filter(correlation_id=schedule.schedule_ulid).latest("id")
            cancellation.cancel(job_ulid=last.job_ulid, actor=ALICE, deadline_seconds=0)
            Project.objects.filter(organization=sandtrace, slug="web").update(enabled=False)
    Project.objects.filter(organization=sandtrace, slug="web").update(enabled=True)
    paused = make_schedule(acme, name="nightly scan", cron="30 3 * * MON-FRI", job=JOB, now=now)
    change_schedule(
        schedule_ulid=paused.schedule_ulid, changes={"status": "paused"}, cause=Cause(ALICE, "the scanner is replaced")
    )
    return schedule, _bulk_actions(acme)


def _bulk_actions(organization: Organization) -> BulkAction:
    project = organization.projects.first()
    assert project is not None
    for _ in range(70):
        submit(
            submission(project, steps_spec(name="branch")),
            policy=configured_policy("steps"),
            default_pool="shared-linux",
            actor=ALICE,
        )
    rows = [
        start_bulk_action(
            organization=organization, action="cancel", filters={"job_type": "steps", "status": "queued"},
            store_targets=store_targets, cause=Cause(ALICE, "the branch was reverted"),
        )[0]
        for _ in range(2)
    ]  # fmt: skip
    BulkTarget.objects.filter(pk=rows[0].targets.order_by("id")[0].pk).update(subject_ulid="rtj_" + "0" * 26)
    advance_bulk_action()
    abort_bulk_action(bulk_action_ulid=rows[1].bulk_action_ulid, cause=Cause(ALICE, "requested twice"))
    return rows[0]
