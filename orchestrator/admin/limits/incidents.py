"""Incidents: those of jobs are the list of dead letters. A breaker resolves its own incident when it closes."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from leases.models import Breaker
from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import JobTypeFilter, OrganizationFilter, choice_filter
from orchestrator.admin.labels import stored_actor_label
from orchestrator.admin.limits.pause import OPERATE
from orchestrator.core.cause import Cause
from orchestrator.incidents.models import Incident, IncidentKind, IncidentStatus
from orchestrator.incidents.operations import acknowledge_incident, resolve_incident
from orchestrator.webhooks.models import Webhook
from runtime_jobs.models import Job
from workers.models import Worker

KINDS: dict[str, str] = {
    IncidentKind.BREAKER: "Breaker",
    IncidentKind.JOB: "Failed job",
    IncidentKind.REPLAY: "Replay",
    IncidentKind.WEBHOOK: "Webhook",
    IncidentKind.WORKER: "Worker",
}
RESOLVED_BY: dict[str, str] = {
    IncidentKind.JOB: " Its job stays failed. A retry of the job resolves the incident, too.",
    IncidentKind.WEBHOOK: " Its webhook stays paused. Its activation resolves the incident, too.",
    IncidentKind.WORKER: " Its worker claims again after its pause.",
}
COLOURS: dict[str, str] = {
    IncidentStatus.OPEN: "danger",
    IncidentStatus.ACKNOWLEDGED: "warning",
    IncidentStatus.RESOLVED: "success",
}


class IncidentStateFilter(DropdownFilter):
    """Filters by status. `open` includes incidents that are acknowledged: both need work."""

    title = "state"
    parameter_name = "state"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "Unresolved"), ("new", "Not acknowledged"), ("resolved", "Resolved")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Incident]) -> QuerySet[Incident]:
        unresolved = queryset.filter(resolved_at=None)
        narrowed = {"open": unresolved, "new": unresolved.filter(acknowledged_at=None)}
        return (narrowed | {"resolved": queryset.exclude(resolved_at=None)}).get(self.value() or "", queryset)


@admin.register(Incident)
class IncidentAdmin(LargeTableAdmin):
    """Displays incidents, acknowledges and resolves them."""

    list_display = ["state_badge", "kind_text", "summary", "subject", "opened", "duration", "resolver"]
    list_display_links = ["summary"]
    list_filter = [IncidentStateFilter, choice_filter("kind", "kind", KINDS.items()), OrganizationFilter, JobTypeFilter]
    ordering = ["-id"]
    fields = ["incident_ulid", "state_badge", "kind_text", "summary", "subject", "opened_time"]
    fields += ["acknowledged_time", "acknowledger", "resolved_time", "resolver", "resolution"]
    actions_detail = ["acknowledge", "resolve"]
    opened = formatting.age_column("opened_at", "Opened")
    opened_time = formatting.timestamp_column("opened_at", "Opened")
    acknowledged_time = formatting.timestamp_column("acknowledged_at", "Acknowledged")
    resolved_time = formatting.timestamp_column("resolved_at", "Resolved")

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(OPERATE)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer what changes the incident: that of a breaker is resolved by the breaker."""
        incident: Any = self.get_object(request, object_id)
        offered = {IncidentStatus.OPEN: {"acknowledge", "resolve"}, IncidentStatus.ACKNOWLEDGED: {"resolve"}}
        names = offered.get(incident.status, set()) if incident else set()
        if incident and incident.kind == IncidentKind.BREAKER:
            names = names - {"resolve"}
        return [button for button in super().get_actions_detail(request, object_id) if button.path in names]

    @action(description="Acknowledge", url_path="acknowledge", permissions=["operate"], icon="visibility")
    def acknowledge(self, request: HttpRequest, object_id: str) -> HttpResponse:
        description = "Records that you work on this incident. It stays unresolved."
        return self._change(request, object_id, "Acknowledge", description, acknowledge_incident)

    @action(
        description="Resolve",
        url_path="resolve",
        permissions=["operate"],
        icon="task_alt",
        variant=ActionVariant.PRIMARY,
    )
    def resolve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._change(request, object_id, "Resolve", "Ends this incident.", resolve_incident)

    def _change(
        self, request: HttpRequest, object_id: str, label: str, description: str, operation: Any
    ) -> HttpResponse:
        incident = self.existing_row(request, object_id)
        if operation is resolve_incident:
            description += RESOLVED_BY.get(incident.kind, "")

        def act(row: Incident, cause: Cause) -> str:
            return f"Incident {operation(incident_ulid=row.incident_ulid, cause=cause).status}"

        text = f"{incident.summary} {description}"
        title = "{button} incident"
        return confirm_for_row(self, request, object_id, act, button=label, description=text, title=title)

    @display(description="State", label=COLOURS)
    def state_badge(self, incident: Incident) -> str:
        return str(incident.status)

    @display(description="Kind")
    def kind_text(self, incident: Incident) -> str:
        return KINDS.get(incident.kind, incident.kind)

    @display(description="Subject")
    def subject(self, incident: Incident) -> SafeString | str:
        """Link the job, the webhook, the worker or the breaker."""
        if incident.job_ulid:
            return formatting.link(formatting.change_url(Job, incident.job_ulid), incident.job_ulid)
        if incident.webhook_ulid:
            return formatting.link(formatting.change_url(Webhook, incident.webhook_ulid), incident.webhook_ulid)
        if worker := Worker.objects.filter(worker_id=incident.worker_ulid).first() if incident.worker_ulid else None:
            return formatting.link(formatting.change_url(Worker, worker.pk), worker.slug)
        if incident.kind != IncidentKind.BREAKER:
            return incident.org_slug
        address = formatting.changelist_url(Breaker, org_slug=incident.org_slug, job_type=incident.job_type)
        return formatting.link(address, f"{incident.job_type} jobs of {incident.org_slug}")

    @display(description="Duration")
    def duration(self, incident: Incident) -> str:
        """Return nothing for an open incident: the column before it has its age."""
        if incident.resolved_at is None:
            return formatting.NO_VALUE
        return formatting.elapsed(incident.opened_at, incident.resolved_at)

    @display(description="Acknowledged by")
    def acknowledger(self, incident: Incident) -> str:
        return stored_actor_label(incident.acknowledged_by) or formatting.NO_VALUE

    @display(description="Resolved by")
    def resolver(self, incident: Incident) -> str:
        return stored_actor_label(incident.resolved_by) or formatting.NO_VALUE
