"""The pages of pools: sets of workers with the same purpose, and their scheduling policy."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminSelectWidget

from leases.models import LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.admin import formatting
from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, render_confirm
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.limits.pause import CHANGE_POOLS, PausableAdmin
from orchestrator.services import pools
from runtime_jobs.models import Job
from workers.models import Pool, Worker
from workers.registry.models import PoolPolicy, WorkerState

POLICIES: dict[str, str] = {PoolPolicy.FIFO: "FIFO", PoolPolicy.FAIR: "Fair share"}
POLICY_DESCRIPTION = (
    "Sets the order among jobs of equal priority. Fair share: organizations share the pool by the weight of their "
    "plans, so a backlog of one delays no other. FIFO: the oldest job first. Running jobs are unaffected."
)


class PoolPolicyForm(ReasonForm):
    """Asks for a reason and for the policy."""

    policy = forms.ChoiceField(choices=list(POLICIES.items()), widget=UnfoldAdminSelectWidget)
    field_order = ("policy", "reason")


@admin.register(Pool)
class PoolAdmin(PausableAdmin, AuditedAdmin):
    """Edits pools, sets their policy, pauses and throttles them."""

    audit_name = "pool"
    immutable_fields = ("slug",)
    pause_permission = CHANGE_POOLS
    list_display = ["slug", "description", "policy_text", "least_isolation", "trusts_lease_ids", "workers", "queue"]
    search_fields = ["slug__startswith"]
    search_help_text = "Slug (prefix)"
    ordering = ["slug"]
    readonly_fields = ["policy_text", "restrictions"]
    actions_detail = ["pause", "resume", "throttle", "set_policy"]

    def limit_target(self, row: Pool) -> LimitTarget:
        return LimitTarget(LimitScope.POOL, "", row.slug)

    @action(description="Set policy", url_path="policy", permissions=["pause"], icon="balance")
    def set_policy(self, request: HttpRequest, object_id: str) -> HttpResponse:
        pool = self.existing_row(request, object_id)
        back = formatting.change_url(Pool, pool.pk)
        form = PoolPolicyForm(request.POST or None, initial={"policy": pool.policy})
        if request.method != "POST" or not form.is_valid():
            page = ConfirmPage(f"Set policy of {pool}", POLICY_DESCRIPTION, "Set policy", back)
            return render_confirm(self, request, page, form)
        policy = PoolPolicy(form.cleaned_data["policy"])
        pools.set_pool_policy(pool=pool.slug, policy=policy, cause=cause_of(request, form))
        messages.success(request, f"Policy of {pool}: {POLICIES[policy]}.")
        return HttpResponseRedirect(back)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pool]:
        registered = Count("workers", filter=~Q(workers__state=WorkerState.REVOKED))
        return super().get_queryset(request).annotate(worker_count=registered)

    @display(description="Policy")
    def policy_text(self, pool: Pool) -> str:
        return POLICIES[pool.policy]

    @display(description="Workers")
    def workers(self, pool: Any) -> SafeString:
        return formatting.link(formatting.changelist_url(Worker, pool__slug=pool.slug), pool.worker_count)

    @display(description="Queue")
    def queue(self, pool: Pool) -> SafeString:
        return formatting.link(formatting.changelist_url(Job, pool=pool.slug, state="queued"), "Queued jobs")
