"""Schedules: their times and what became of them, and buttons that run, pause, resume and delete."""

import json
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display

from orchestrator.admin import formatting
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import RelatedOrganizationFilter, choice_filter
from orchestrator.admin.managed_rows import ManagedRowAdmin
from orchestrator.core.cause import Cause
from orchestrator.http.api.schedule_jobs import configured_submitter
from orchestrator.schedules.cron import CronTimes
from orchestrator.schedules.models import Schedule, ScheduleStatus, ScheduleTick
from orchestrator.schedules.operations import change_schedule, delete_schedule, run_schedule
from runtime_jobs.models import Job

COLOURS = {"active": "success", "paused": "warning"}
NEXT_TIMES = 5
TICKS_DISPLAYED = 20


@admin.register(Schedule)
class ScheduleAdmin(ManagedRowAdmin):
    """Displays schedules; every change is a button."""

    list_display = ["name", "organization", "times", "next_job", "status_badge", "job_type", "last_tick"]
    list_display_links = ["name"]
    list_filter = [choice_filter("status", "status", ScheduleStatus.choices), RelatedOrganizationFilter]
    list_select_related = ["organization"]
    fields = ["identifier", "name", "organization", "times", "next_times", "status_badge", "missed", "overlap"]
    fields += ["request_fields", "editor", "created", "updated", "last_ticks"]
    remove_text = "Submits no more jobs. Jobs that it has submitted remain."
    actions_detail = ["run_now", "pause", "resume", "remove"]
    identifier = formatting.value_column("schedule_ulid", "Schedule")
    next_job = formatting.timestamp_column("next_at", "Next time")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        newest = ScheduleTick.objects.filter(schedule=OuterRef("pk")).order_by("-id")
        rows: QuerySet[Schedule] = super().get_queryset(request)
        return rows.annotate(
            last_due_at=Subquery(newest.values("due_at")[:1]), last_outcome=Subquery(newest.values("outcome")[:1])
        )

    def change_row(self, row: Schedule, changes: dict[str, Any], cause: Cause) -> Schedule:
        return change_schedule(schedule_ulid=row.schedule_ulid, changes=changes, cause=cause)

    def delete_row(self, row: Schedule, cause: Cause) -> None:
        delete_schedule(schedule_ulid=row.schedule_ulid, cause=cause)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer what is possible in the status. The operations check the status again."""
        schedule: Any = self.get_object(request, object_id)
        if schedule is None:
            return []
        other = "pause" if schedule.status == ScheduleStatus.ACTIVE else "resume"
        buttons = super().get_actions_detail(request, object_id)
        return [button for button in buttons if button.path in {"run", other, "remove"}]

    @display(description="Times")
    def times(self, schedule: Schedule) -> SafeString:
        return formatting.two_lines(schedule.cron, schedule.time_zone)

    @display(description="Status", label=COLOURS)
    def status_badge(self, schedule: Schedule) -> str:
        return schedule.status

    @display(description="Job type")
    def job_type(self, schedule: Schedule) -> str:
        return str(schedule.job.get("job_type", formatting.NO_VALUE))

    @display(description="Last time")
    def last_tick(self, schedule: Any) -> SafeString | str:
        if schedule.last_due_at is None:
            return formatting.NO_VALUE
        return formatting.two_lines(formatting.format_utc(schedule.last_due_at), schedule.last_outcome)

    @display(description="Next times")
    def next_times(self, schedule: Schedule) -> SafeString | str:
        times = CronTimes(schedule.cron, schedule.time_zone).upcoming(timezone.now(), NEXT_TIMES)
        rows = ((formatting.format_utc(time),) for time in times)
        return format_html_join("", "<p>{}</p>", rows) or formatting.NO_VALUE

    @display(description="Job")
    def request_fields(self, schedule: Schedule) -> SafeString:
        job = schedule.job.items()
        members = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in job}
        return formatting.key_value_lines(members)

    @display(description="Last times")
    def last_ticks(self, schedule: Schedule) -> SafeString | str:
        ticks = schedule.ticks.order_by("-id")[:TICKS_DISPLAYED]
        rows = ((formatting.format_utc(tick.due_at), tick.outcome, _result_of(tick)) for tick in ticks)
        return format_html_join("", "<p>{}: {} {}</p>", rows) or formatting.NO_VALUE

    @action(description="Run now", url_path="run", permissions=["operate"], icon="play_arrow")
    def run_now(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Submit the job now."""

        def act(schedule: Schedule, cause: Cause) -> str:
            outcome = run_schedule(schedule_ulid=schedule.schedule_ulid, submitter=configured_submitter(), cause=cause)
            return f"Job {outcome.job.job_ulid} queued"

        text = "Submits the job now, also while the schedule is paused. The next time does not change."
        return confirm_for_row(self, request, object_id, act, button="Run now", description=text)

    @action(description="Pause", url_path="pause", permissions=["operate"], icon="pause")
    def pause(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Submit nothing until it is resumed."""
        text = "No job is submitted until the schedule is resumed."
        act = self.change("is paused", status="paused")
        return confirm_for_row(self, request, object_id, act, button="Pause", description=text)

    @action(description="Resume", url_path="resume", permissions=["operate"], icon="resume")
    def resume(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Submit jobs again."""
        text = "Jobs are submitted again from the next time on. Times during the pause are not missed."
        act = self.change("is active", status="active")
        return confirm_for_row(self, request, object_id, act, button="Resume", description=text)


def _result_of(tick: ScheduleTick) -> SafeString | str:
    if tick.job_ulid is not None:
        return formatting.link(formatting.changelist_url(Job, q=tick.job_ulid), tick.job_ulid)
    if tick.missed_before is not None:
        return f"all times before {formatting.format_utc(tick.missed_before)}"
    return f"{tick.error_code}. {tick.message}" if tick.error_code else tick.message
