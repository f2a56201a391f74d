"""Bulk actions: their progress and refusals, and a button that aborts."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import RelatedOrganizationFilter, choice_filter
from orchestrator.bulk_actions.models import BulkAction, BulkStatus, TargetOutcome
from orchestrator.bulk_actions.operations import abort_bulk_action
from orchestrator.core.cause import Cause

COLOURS = {"pending": "info", "running": "info", "aborting": "warning", "aborted": "warning", "completed": "success"}
REFUSALS_DISPLAYED = 50


@admin.register(BulkAction)
class BulkActionAdmin(ReadOnlyAdmin):
    """Displays bulk actions with their progress."""

    list_display = ["created", "organization", "action", "progress", "refused", "status_badge", "requester", "reason"]
    list_display_links = ["created"]
    list_filter = [choice_filter("status", "status", BulkStatus.choices), RelatedOrganizationFilter]
    list_select_related = ["organization"]
    ordering = ["-id"]
    sortable_by = ()
    fields = ["bulk_action_ulid", "organization", "action", "conditions", "reason", "requester", "source_address"]
    fields += ["status_badge", "progress", "refused", "aborter", "created", "started", "finished", "refusals"]
    actions_detail = ["abort"]
    created = formatting.timestamp_column("created_at", "Created")
    started = formatting.timestamp_column("started_at", "Started")
    finished = formatting.timestamp_column("finished_at", "Finished")
    aborter = formatting.value_column("aborted_by", "Aborted by")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer to abort what has not ended."""
        row: Any = self.get_object(request, object_id)
        is_abortable = row is not None and row.status in {BulkStatus.PENDING, BulkStatus.RUNNING}
        return super().get_actions_detail(request, object_id) if is_abortable else []

    @display(description="Progress")
    def progress(self, row: BulkAction) -> str:
        handled = row.done + row.refused
        percent = 100 * handled // row.total if row.total else 100
        return f"{handled:,} of {row.total:,} ({percent} %)"

    @display(description="Status", label=COLOURS)
    def status_badge(self, row: BulkAction) -> str:
        return row.status

    @display(description="Requested by")
    def requester(self, row: BulkAction) -> str:
        return str(row.actor)

    @display(description="Filter")
    def conditions(self, row: BulkAction) -> SafeString:
        return formatting.key_value_lines(row.filters)

    @display(description="Refusals")
    def refusals(self, row: BulkAction) -> SafeString | str:
        targets = row.targets.filter(outcome=TargetOutcome.REFUSED).order_by("-id")[:REFUSALS_DISPLAYED]
        rows = ((target.subject_ulid, target.error_code, target.detail) for target in targets)
        return format_html_join("", "<p>{}: {}. {}</p>", rows) or formatting.NO_VALUE

    @action(description="Abort", url_path="abort", permissions=["operate"], icon="stop", variant=ActionVariant.DANGER)
    def abort(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Stop the action."""

        def act(row: BulkAction, cause: Cause) -> str:
            aborted = abort_bulk_action(bulk_action_ulid=row.bulk_action_ulid, cause=cause)
            return f"Bulk action is {aborted.status}"

        text = "Stops the action. Changes that were made remain."
        return confirm_for_row(self, request, object_id, act, button="Abort", description=text, danger=True)
