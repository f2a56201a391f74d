"""Circuit breakers: whose jobs of a type are held back because too many of them failed."""

from typing import Any

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from leases.models import Breaker, BreakerState
from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from orchestrator.admin.filters import any_of, exactly
from orchestrator.admin.limits.pause import OPERATE, asked_by
from orchestrator.models import Incident
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job

WORDS: dict[str, str] = {
    BreakerState.CLOSED: "closed",
    BreakerState.OPEN: "open",
    BreakerState.HALF_OPEN: "half open",
}
COLOURS: dict[str, str] = {
    BreakerState.CLOSED: "success",
    BreakerState.OPEN: "danger",
    BreakerState.HALF_OPEN: "warning",
}


@admin.register(Breaker)
class BreakerAdmin(LargeTableAdmin):
    list_display = ["organization", "shown_type", "shown_state", "since", "probe", "failed", "incidents"]
    list_filter = [
        any_of("state", "state", list(WORDS.items())),
        exactly("org_slug", "organization"),
        exactly("job_type", "job type"),
    ]
    ordering = ["-id"]
    fields = ["organization", "shown_type", "words", "since", "probe", "failed", "incidents"]
    actions_detail = ["reset"]

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
        breaker: Any = self.get_object(request, object_id)
        if breaker is None:
            raise Http404
        form, back = ReasonForm(request.POST or None), formatting.change_url(Breaker, breaker.pk)
        if request.method == "POST" and form.is_valid():
            _reset(request, breaker, form)
            return HttpResponseRedirect(back)
        lead = "Its jobs may start at once; what has failed so far counts no more. It opens again if most fail again."
        title = f"Reset the breaker of {breaker.org_slug}'s {breaker.job_type} jobs"
        return render_confirm(self, request, ConfirmPage(title, lead, "Reset", back), form)

    @display(description="Organization")
    def organization(self, breaker: Breaker) -> str:
        return breaker.org_slug

    @display(description="Jobs of type")
    def shown_type(self, breaker: Breaker) -> str:
        return breaker.job_type

    @display(description="State", label=COLOURS)
    def shown_state(self, breaker: Breaker) -> tuple[str, str]:
        return breaker.state, WORDS[breaker.state]

    @display(description="State")
    def words(self, breaker: Breaker) -> str:
        return WORDS[breaker.state]

    @display(description="Opened")
    def since(self, breaker: Breaker) -> SafeString | str:
        if breaker.state == BreakerState.CLOSED:
            return "-"
        return formatting.with_timestamp(formatting.time_ago(breaker.opened_at, timezone.now()), breaker.opened_at)

    @display(description="Tries one")
    def probe(self, breaker: Breaker) -> SafeString | str:
        if breaker.state == BreakerState.HALF_OPEN:
            return "waits for its end"
        if breaker.state == BreakerState.CLOSED:
            return "-"
        return formatting.with_timestamp(formatting.time_until(breaker.cool_until, timezone.now()), breaker.cool_until)

    @display(description="Failed")
    def failed(self, breaker: Breaker) -> SafeString:
        return formatting.link(
            formatting.changelist_url(Job, org_slug=breaker.org_slug, status="failed", ended="24h"), "its failed jobs"
        )

    @display(description="Incidents")
    def incidents(self, breaker: Breaker) -> SafeString:
        address = formatting.changelist_url(Incident, org_slug=breaker.org_slug, job_type=breaker.job_type)
        return formatting.link(address, "its incidents")


def _reset(request: HttpRequest, breaker: Breaker, form: ReasonForm) -> None:
    try:
        services.reset_breaker(org_slug=breaker.org_slug, job_type=breaker.job_type, **asked_by(request, form))
    except LifecycleError as refusal:
        messages.warning(request, refusal.message)
    else:
        messages.success(request, f"{breaker.org_slug}'s {breaker.job_type} jobs may start again.")
