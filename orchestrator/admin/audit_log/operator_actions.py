"""The actions of operators on workers, limits, tokens and tenants, read-only."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import CreatedFilter, exact_filter
from orchestrator.admin.labels import stored_actor_label
from runtime_jobs.models import OperatorEvent


@admin.register(OperatorEvent)
class OperatorEventAdmin(LargeTableAdmin):
    """Displays operator events."""

    list_display = ["time", "action", "target", "actor_text", "reason", "source_ip"]
    list_filter = [
        exact_filter("target", "target"),
        exact_filter("actor", "actor"),
        exact_filter("action", "action"),
        CreatedFilter,
    ]
    ordering = ["-created_at", "-id"]
    fields = [
        "event_id",
        "time",
        "action",
        "target",
        "actor_text",
        "reason",
        "source_ip",
        "before_lines",
        "after_lines",
    ]
    time = formatting.timestamp_column("created_at", "Time")
    event_id = formatting.value_column("event_ulid", "Event id")
    source_ip = formatting.value_column("source_address", "Source IP")

    @display(description="Actor")
    def actor_text(self, event: OperatorEvent) -> str:
        return stored_actor_label(event.actor)

    @display(description="Before")
    def before_lines(self, event: OperatorEvent) -> SafeString:
        return formatting.key_value_lines(event.before or {})

    @display(description="After")
    def after_lines(self, event: OperatorEvent) -> SafeString:
        return formatting.key_value_lines(event.after or {})
