"""Circuit breakers: organization and job type whose jobs do not start because most of them failed."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from leases.models import Breaker, BreakerState
from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import JobTypeFilter, OrganizationFilter, multiple_choice_filter
from orchestrator.admin.limits.pause import OPERATE
from orchestrator.core.cause import Cause
from orchestrator.incidents import breakers
from orchestrator.incidents.models import Incident
from runtime_jobs.models import Job

STATES: dict[str, str] = {
    BreakerState.CLOSED: "Closed",
    BreakerState.OPEN: "Open",
    BreakerState.HALF_OPEN: "Half-open",
}
COLOURS: dict[str, str] = {
    BreakerState.CLOSED: "success",
    BreakerState.OPEN: "danger",
    BreakerState.HALF_OPEN: "warning",
}


@admin.register(Breaker)
class BreakerAdmin(LargeTableAdmin):
    """Displays breakers and resets them."""

    list_display = ["organization", "type", "state_badge", "opened", "half_open", "failed_jobs", "incidents"]
    list_filter = [multiple_choice_filter("state", "state", STATES.items()), OrganizationFilter, JobTypeFilter]
    ordering = ["-id"]
    fields = ["organization", "type", "state_text", "opened", "half_open", "failed_jobs", "incidents"]
    actions_detail = ["reset"]
    organization = formatting.value_column("org_slug", "Organization")
    type = formatting.value_column("job_type", "Job type")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Breaker]:
        return super().get_queryset(request).with_probe()

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(OPERATE)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        breaker = self.get_object(request, object_id)
        is_closed = breaker is None or breaker.state == BreakerState.CLOSED
        return [] if is_closed else super().get_actions_detail(request, object_id)

    @action(
        description="Reset",
        url_path="reset",
        permissions=["operate"],
        icon="restart_alt",
        variant=ActionVariant.PRIMARY,
    )
    def reset(self, request: HttpRequest, object_id: str) -> HttpResponse:

        def act(breaker: Breaker, cause: Cause) -> str:
            breakers.reset_breaker(org_slug=breaker.org_slug, job_type=breaker.job_type, cause=cause)
            return f"Breaker for {breaker.job_type} jobs of {breaker.org_slug} reset"

        text = (
            "Closes the breaker and clears its failure count. Jobs can start at once. "
            "The breaker opens again if most of them fail."
        )
        title = "Reset breaker for {row.job_type} jobs of {row.org_slug}"
        return confirm_for_row(self, request, object_id, act, button="Reset", description=text, title=title)

    @display(description="State", label=COLOURS)
    def state_badge(self, breaker: Breaker) -> tuple[str, str]:
        return breaker.state, STATES[breaker.state]

    @display(description="State")
    def state_text(self, breaker: Breaker) -> str:
        return STATES[breaker.state]

    @display(description="Opened")
    def opened(self, breaker: Breaker) -> SafeString | str:
        if breaker.state == BreakerState.CLOSED:
            return formatting.NO_VALUE
        return formatting.with_timestamp(formatting.time_ago(breaker.opened_at, timezone.now()), breaker.opened_at)

    @display(description="Half-open")
    def half_open(self, breaker: Any) -> SafeString | str:
        if breaker.state == BreakerState.HALF_OPEN:
            return "probe job running" if breaker.is_probing else "one job may start"
        if breaker.state == BreakerState.CLOSED:
            return formatting.NO_VALUE
        return formatting.with_timestamp(formatting.time_until(breaker.cool_until, timezone.now()), breaker.cool_until)

    @display(description="Failed jobs")
    def failed_jobs(self, breaker: Breaker) -> SafeString:
        address = formatting.changelist_url(Job, org_slug=breaker.org_slug, status="failed", ended="24h")
        return formatting.link(address, "Failed jobs (24 h)")

    @display(description="Incidents")
    def incidents(self, breaker: Breaker) -> SafeString:
        address = formatting.changelist_url(Incident, org_slug=breaker.org_slug, job_type=breaker.job_type)
        return formatting.link(address, "Incidents")
