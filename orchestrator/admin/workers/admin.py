"""Workers: who is alive, what each holds, and the verbs: register, rotate, activate, drain, set aside, revoke."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.decorators import display

from leases.models import Lease
from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.base import actor_of
from orchestrator.admin.dashboard import queries
from orchestrator.admin.filters import exactly, one_of
from orchestrator.admin.tokens.show_once import CreateWithToken
from orchestrator.admin.workers.actions import WorkerActions
from orchestrator.http.client_ip import client_address
from orchestrator.selectors.pending_reasons.workers import SILENT_AFTER
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from workers.models import Worker
from workers.registry.models import WorkerState

HEALTH = {"alive": "success", "silent": "danger", "draining": "info", "maintenance": "warning", "revoked": "default"}


class Health(DropdownFilter):
    title = "health"
    parameter_name = "health"
    parameters: ClassVar = ("health",)

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("alive", "Alive"), ("silent", "Silent while active")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Worker]) -> QuerySet[Worker]:
        if self.value() not in {"alive", "silent"}:
            return queryset
        wanted = queries.alive if self.value() == "alive" else queries.silent
        return queryset.filter(wanted(database_now()))


@admin.register(Worker)
class WorkerAdmin(WorkerActions, CreateWithToken, AuditedAdmin):
    noun = "worker"
    fixed = ("slug",)
    add_lead = "It may claim jobs of its pool with the token that the next page shows, once."
    list_display = ["slug", "shown_health", "pool", "seen", "used", "shown_labels", "note"]
    list_filter = [
        Health,
        one_of("state", "state", list(WorkerState.choices)),
        exactly("pool__slug", "pool"),
    ]
    list_select_related = ["pool"]
    search_fields = ["slug__startswith", "worker_id"]
    search_help_text = "name (its beginning), worker id"
    ordering = ["slug"]
    fields = ["slug", "pool", "capacity", "labels", "capabilities", "certificate_subject"]

    change_form_outer_before_template = "admin/worker.html"

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Worker, **kwargs: Any
    ) -> HttpResponse:
        """With how it stands above the form. There is always a worker: a new one has a page of its own."""
        held = Job.objects.filter(leases__worker=obj, leases__status="open").order_by("id")[:50]
        state = self.shown_health(obj)
        context |= {"held_jobs": list(held), "health": state, "colour": HEALTH[state]}
        context["seen"] = formatting.time_ago(obj.last_seen_at, timezone.now())
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: Worker | None = None) -> bool:
        gone = isinstance(obj, Worker) and obj.state == WorkerState.REVOKED
        return super().has_change_permission(request, obj) and not gone

    def target_of(self, row: Worker) -> str:
        return row.worker_id

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        """With how many leases each holds, counted in the one statement of the list."""
        open_ones = Lease.objects.open().filter(worker=OuterRef("worker_id")).order_by().values("worker")
        held = open_ones.annotate(count=Count("id")).values("count")
        return super().get_queryset(request).annotate(held=Coalesce(Subquery(held), 0))

    def make(self, request: HttpRequest, asked: dict[str, Any]) -> tuple[Worker, str]:
        return services.register_worker(**asked, actor=actor_of(request), source_address=client_address(request))

    @display(description="Health", label=HEALTH)
    def shown_health(self, worker: Worker) -> str:
        if worker.state != WorkerState.ACTIVE:
            return worker.state
        last = worker.last_seen_at or worker.created_at
        return "silent" if timezone.now() - last >= SILENT_AFTER else "alive"

    @display(description="Last seen")
    def seen(self, worker: Worker) -> SafeString:
        return formatting.with_timestamp(formatting.time_ago(worker.last_seen_at, timezone.now()), worker.last_seen_at)

    @display(description="Holds")
    def used(self, worker: Any) -> str:
        return f"{worker.held} of {worker.capacity}"

    @display(description="Labels")
    def shown_labels(self, worker: Worker) -> str:
        return ", ".join(worker.labels)
