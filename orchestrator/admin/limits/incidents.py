"""Incidents, read-only. The reset or the successful probe of a breaker resolves its incident."""

from typing import Any

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
from orchestrator.admin.filters import JobTypeFilter, OrganizationFilter
from orchestrator.admin.labels import stored_actor_label
from orchestrator.models import Incident


class IncidentStateFilter(DropdownFilter):
    """Filters by whether the incident is resolved."""

    title = "state"
    parameter_name = "state"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "Open"), ("resolved", "Resolved")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Incident]) -> QuerySet[Incident]:
        known = self.value() in {"open", "resolved"}
        return queryset.filter(resolved_at__isnull=self.value() == "open") if known else queryset


@admin.register(Incident)
class IncidentAdmin(LargeTableAdmin):
    """Displays incidents."""

    list_display = ["state_badge", "summary", "breaker", "opened", "duration", "resolver"]
    list_display_links = ["summary"]
    list_filter = [IncidentStateFilter, OrganizationFilter, JobTypeFilter]
    ordering = ["-id"]
    fields = ["incident_ulid", "state_badge", "summary", "breaker", "opened_time", "resolved_time", "resolver"]
    opened = formatting.age_column("opened_at", "Opened")
    opened_time = formatting.timestamp_column("opened_at", "Opened")
    resolved_time = formatting.timestamp_column("resolved_at", "Resolved")

    @display(description="State", label={"open": "danger", "resolved": "success"})
    def state_badge(self, incident: Incident) -> str:
        return "resolved" if incident.resolved_at else "open"

    @display(description="Breaker")
    def breaker(self, incident: Incident) -> SafeString:
        address = formatting.changelist_url(Breaker, org_slug=incident.org_slug, job_type=incident.job_type)
        return formatting.link(address, f"{incident.job_type} jobs of {incident.org_slug}")

    @display(description="Duration")
    def duration(self, incident: Incident) -> str:
        return formatting.elapsed(incident.opened_at, incident.resolved_at or timezone.now())

    @display(description="Resolved by")
    def resolver(self, incident: Incident) -> str:
        return stored_actor_label(incident.resolved_by) or formatting.NO_VALUE
