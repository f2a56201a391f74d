"""Incidents: what an operator should know of until it is resolved. To look at; the breaker's reset resolves one."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.decorators import display

from leases.models import Breaker
from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import exactly
from orchestrator.models import Incident


class Resolved(DropdownFilter):
    title = "state"
    parameter_name = "state"
    parameters: ClassVar = ("state",)

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "Open"), ("resolved", "Resolved")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Incident]) -> QuerySet[Incident]:
        known = self.value() in {"open", "resolved"}
        return queryset.filter(resolved_at__isnull=self.value() == "open") if known else queryset


@admin.register(Incident)
class IncidentAdmin(LargeTableAdmin):
    list_display = ["shown_state", "summary", "source", "opened", "lasted", "ended_by"]
    list_display_links = ["summary"]
    list_filter = [Resolved, exactly("org_slug", "organization"), exactly("job_type", "job type")]
    ordering = ["-id"]
    fields = ["incident_ulid", "shown_state", "summary", "source", "opening", "end", "ended_by"]
    opening = formatting.time_of("opened_at", "Opened")
    end = formatting.time_of("resolved_at", "Resolved")

    @display(description="State", label={"open": "danger", "resolved": "success"})
    def shown_state(self, incident: Incident) -> str:
        return "resolved" if incident.resolved_at else "open"

    @display(description="Breaker")
    def source(self, incident: Incident) -> SafeString:
        address = formatting.changelist_url(Breaker, org_slug=incident.org_slug, job_type=incident.job_type)
        return formatting.link(address, f"{incident.org_slug}, {incident.job_type} jobs")

    @display(description="Opened")
    def opened(self, incident: Incident) -> SafeString:
        return formatting.with_timestamp(formatting.time_ago(incident.opened_at, timezone.now()), incident.opened_at)

    @display(description="Lasted")
    def lasted(self, incident: Incident) -> str:
        return formatting.elapsed(incident.opened_at, incident.resolved_at or timezone.now())

    @display(description="Resolved by")
    def ended_by(self, incident: Incident) -> str:
        kind, _, name = incident.resolved_by.partition(":")
        return "its probe" if kind == "clock" else name or "-"
