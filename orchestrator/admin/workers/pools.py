"""Pools: sets of like workers."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminSelectWidget

from leases.models import LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from orchestrator.admin.limits.pause import CHANGE_POOLS, PausableAdmin, asked_by
from runtime_jobs.models import Job
from workers.models import Pool, Worker
from workers.registry.models import PoolPolicy, WorkerState

LEAD = (
    "Order among jobs of one priority. By turns: each organization gets its share by the weight of its plan, so a "
    "backlog of one delays no other. The oldest first: strictly by age, so a backlog is served before what comes after "
    "it. Running jobs continue."
)
WORDS: dict[str, str] = {PoolPolicy.FIFO: "the oldest first", PoolPolicy.FAIR: "organizations by turns"}


class PoolPolicyForm(ReasonForm):
    """A reason, and how the pool shall be shared."""

    policy = forms.ChoiceField(choices=list(WORDS.items()), widget=UnfoldAdminSelectWidget)
    field_order = ("policy", "reason")


@admin.register(Pool)
class PoolAdmin(PausableAdmin, AuditedAdmin):
    noun = "pool"
    fixed = ("slug",)
    hold_permission = CHANGE_POOLS
    list_display = ["slug", "description", "shown_policy", "least_isolation", "trusts_lease_ids", "workers", "waiting"]
    search_fields = ["slug__startswith"]
    ordering = ["slug"]
    readonly_fields = ["shown_policy", "held"]
    actions_detail = ["pause", "resume", "throttle", "policy"]

    def subject_of(self, row: Pool) -> LimitTarget:
        return LimitTarget(LimitScope.POOL, "", row.slug)

    @action(description="Policy", url_path="policy", permissions=["hold"], icon="balance")
    def policy(self, request: HttpRequest, object_id: str) -> HttpResponse:
        pool = self.get_object(request, object_id)
        if pool is None:
            raise Http404
        form, back = (
            PoolPolicyForm(request.POST or None, initial={"policy": pool.policy}),
            formatting.change_url(Pool, pool.pk),
        )
        if request.method != "POST" or not form.is_valid():
            return render_confirm(self, request, ConfirmPage(f"Policy of {pool}", LEAD, "Set policy", back), form)
        policy = PoolPolicy(form.cleaned_data["policy"])
        services.set_pool_policy(pool=pool.slug, policy=policy, **asked_by(request, form))
        messages.success(request, f"{pool}: {WORDS[policy]}.")
        return HttpResponseRedirect(back)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pool]:
        there = Count("workers", filter=~Q(workers__state=WorkerState.REVOKED))
        return super().get_queryset(request).annotate(there=there)

    @display(description="Policy")
    def shown_policy(self, pool: Pool) -> str:
        return WORDS[pool.policy]

    @display(description="Workers")
    def workers(self, pool: Any) -> SafeString:
        return formatting.link(formatting.changelist_url(Worker, pool__slug=pool.slug), pool.there)

    @display(description="Waiting")
    def waiting(self, pool: Pool) -> SafeString:
        return formatting.link(formatting.changelist_url(Job, pool=pool.slug, state="queued"), "its queue")
