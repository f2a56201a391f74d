"""What people did to workers, tokens and tenants, to look at."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import days, exactly
from runtime_jobs.models import OperatorEvent


@admin.register(OperatorEvent)
class OperatorEventAdmin(LargeTableAdmin):
    list_display = ["time", "action", "target", "actor", "reason", "source_address"]
    list_filter = [
        exactly("target", "target"),
        exactly("actor", "actor"),
        exactly("action", "action"),
        days("created_at", "time"),
    ]
    time = formatting.time_of("created_at", "Time")
    ordering = ["-created_at", "-id"]
    fields = ["event_ulid", "time", "action", "target", "actor", "reason", "source_address"]
    fields += ["shown_before", "shown_after"]

    @display(description="Before")
    def shown_before(self, event: OperatorEvent) -> SafeString:
        return formatting.as_lines(event.before or {})

    @display(description="After")
    def shown_after(self, event: OperatorEvent) -> SafeString:
        return formatting.as_lines(event.after or {})
