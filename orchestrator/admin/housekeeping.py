"""The tasks of housekeeping: those that wait, run or fail, with the last error and a button that starts one at once."""

from typing import Any

from django.contrib import admin
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.decorators import action, display

from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.dashboard.queries import FAILS_LASTINGLY
from orchestrator.admin.filters import exact_filter
from orchestrator.core.cause import Cause
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.operations import start_housekeeping_task

COLOURS = {"failed": "danger", "failing": "warning", "running": "info", "due": "default", "waiting": "success"}


def state_of(task: HousekeepingTask) -> str:
    """Return the state of a task in one word."""
    now = timezone.now()
    if task.claimed_until is not None and task.claimed_until > now:
        return "running"
    if task.due_at is None:
        return "failed"
    if task.failures:
        return "failing"
    return "due" if task.due_at <= now else "waiting"


class TaskStateFilter(DropdownFilter):
    """Filters by whether the last execution failed."""

    title = "state"
    parameter_name = "state"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("failing", "Failing or failed"), ("lasting", "Failing repeatedly"), ("ok", "Others")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[HousekeepingTask]) -> QuerySet[HousekeepingTask]:
        fails = Q(failures__gt=0) | Q(due_at__isnull=True)
        narrowed = {"failing": queryset.filter(fails), "ok": queryset.exclude(fails)}
        return (narrowed | {"lasting": queryset.filter(FAILS_LASTINGLY)}).get(self.value() or "", queryset)


@admin.register(HousekeepingTask)
class HousekeepingTaskAdmin(ReadOnlyAdmin):
    """Displays tasks, those that fail first."""

    list_display = ["kind_code", "subject", "state_badge", "due", "failures", "error", "age_of_success"]
    list_display_links = ["kind_code"]
    list_filter = [TaskStateFilter, exact_filter("kind", "kind"), exact_filter("subject", "subject")]
    ordering = [F("failed_at").desc(nulls_last=True), "due_at"]
    sortable_by = ()
    fields = ["kind_code", "subject", "state_badge", "due", "failures", "last_error", "failed", "succeeded"]
    fields += ["claimed_by", "claimed", "created"]
    actions_detail = ["start"]
    due = formatting.timestamp_column("due_at", "Due")
    failed = formatting.timestamp_column("failed_at", "Last failure")
    age_of_success = formatting.age_column("succeeded_at", "Last success")
    succeeded = formatting.timestamp_column("succeeded_at", "Last success")
    claimed = formatting.timestamp_column("claimed_until", "Claimed until")
    created = formatting.timestamp_column("created_at", "Created")

    @display(description="Kind", ordering="kind")
    def kind_code(self, task: HousekeepingTask) -> SafeString:
        return formatting.code(task.kind)

    @display(description="State", label=COLOURS)
    def state_badge(self, task: HousekeepingTask) -> str:
        return state_of(task)

    @display(description="Last error")
    def error(self, task: HousekeepingTask) -> str:
        return task.last_error[:120] or formatting.NO_VALUE

    @action(description="Run now", url_path="start", permissions=["operate"], icon="play_arrow")
    def start(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Let the task be executed at once."""

        def act(task: HousekeepingTask, cause: Cause) -> str:
            start_housekeeping_task(kind=task.kind, subject=task.subject, cause=cause)
            return f"{task} is due now"

        text = "A housekeeping process starts the task at once, or once more if it is running."
        title = "Run {row} now"
        return confirm_for_row(self, request, object_id, act, button="Run now", description=text, title=title)
