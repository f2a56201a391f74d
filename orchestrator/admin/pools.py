"""Pools: sets of like workers."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminSelectWidget

from leases.limits import Subject
from leases.models import LimitScope
from orchestrator import lifecycle
from orchestrator.admin import shown
from orchestrator.admin.asking import Question, Reason, ask
from orchestrator.admin.holding import CHANGE_POOLS, Held, asked_by
from orchestrator.admin.recording import Recorded
from runtime_jobs.models import Job
from workers.models import Pool, Worker
from workers.registry.models import PoolPolicy, WorkerState

LEAD = (
    "Order among jobs of one priority. By turns: each organization gets its share by the weight of its plan, so a "
    "backlog of one delays no other. The oldest first: strictly by age, so a backlog is served before what comes after "
    "it. Running jobs continue."
)
WORDS: dict[str, str] = {PoolPolicy.FIFO: "the oldest first", PoolPolicy.FAIR: "organizations by turns"}


class NewPolicy(Reason):
    """A reason, and how the pool shall be shared."""

    policy = forms.ChoiceField(choices=list(WORDS.items()), widget=UnfoldAdminSelectWidget)
    field_order = ("policy", "reason")


@admin.register(Pool)
class PoolAdmin(Held, Recorded):
    noun = "pool"
    fixed = ("slug",)
    hold_permission = CHANGE_POOLS
    list_display = ["slug", "description", "shown_policy", "least_isolation", "trusts_lease_ids", "workers", "waiting"]
    search_fields = ["slug__startswith"]
    ordering = ["slug"]
    readonly_fields = ["shown_policy", "held"]
    actions_detail = ["pause", "resume", "throttle", "policy"]

    def subject_of(self, row: Pool) -> Subject:
        return Subject(LimitScope.POOL, "", row.slug)

    @action(description="Policy", url_path="policy", permissions=["hold"], icon="balance")
    def policy(self, request: HttpRequest, object_id: str) -> HttpResponse:
        pool = self.get_object(request, object_id)
        if pool is None:
            raise Http404
        form, back = NewPolicy(request.POST or None, initial={"policy": pool.policy}), shown.page_of(Pool, pool.pk)
        if request.method != "POST" or not form.is_valid():
            return ask(self, request, Question(f"Policy of {pool}", LEAD, "Set policy", back), form)
        policy = PoolPolicy(form.cleaned_data["policy"])
        lifecycle.set_pool_policy(pool=pool.slug, policy=policy, **asked_by(request, form))
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
        return shown.link(shown.list_of(Worker, pool__slug=pool.slug), pool.there)

    @display(description="Waiting")
    def waiting(self, pool: Pool) -> SafeString:
        return shown.link(shown.list_of(Job, pool=pool.slug, state="queued"), "its queue")
