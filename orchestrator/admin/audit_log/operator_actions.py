"""The actions of operators on workers, limits, tokens and tenants, read-only."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import CreatedFilter, ExactFilter
from orchestrator.admin.labels import stored_actor_label
from runtime_jobs.models import OperatorEvent


class TargetFilter(ExactFilter):
    """Filters by the resource that was changed, as in `pool:shared-linux`."""

    title = "target"
    parameter_name = "target"


class OperatorFilter(ExactFilter):
    """Filters by the actor, as in `operator:olga`."""

    title = "actor"
    parameter_name = "actor"


class OperatorActionFilter(ExactFilter):
    """Filters by action, as in `pool.changed`."""

    title = "action"
    parameter_name = "action"


@admin.register(OperatorEvent)
class OperatorEventAdmin(LargeTableAdmin):
    """Displays operator events."""

    list_display = ["time", "action", "target", "actor_text", "reason", "source_ip"]
    list_filter = [TargetFilter, OperatorFilter, OperatorActionFilter, CreatedFilter]
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
