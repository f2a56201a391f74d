"""The pages of workers: health, active leases, registration, and the buttons of `actions.py`."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from unfold.contrib.filters.admin import DropdownFilter
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.confirm import cause_of
from orchestrator.admin.dashboard import queries
from orchestrator.admin.filters import choice_filter, exact_filter
from orchestrator.admin.labels import job_badge
from orchestrator.admin.token_pages import CreateWithToken
from orchestrator.admin.workers.actions import WorkerActionsMixin
from orchestrator.selectors.pending_reasons.workers import SILENT_AFTER
from orchestrator.services import credentials
from orchestrator.services.credentials import require_other_pool
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid
from runtime_jobs.models import Job
from workers.models import Pool, Worker
from workers.registry.models import WorkerState

# Label and colour by health. A worker that is not active has its state as health.
HEALTH: dict[str, tuple[str, str]] = {
    "online": ("Online", "success"),
    "offline": ("Offline", "danger"),
    "not_ready": ("Not ready", "warning"),
    "never_connected": ("Never connected", "default"),
    WorkerState.DRAINING: ("Draining", "info"),
    WorkerState.MAINTENANCE: ("In maintenance", "warning"),
    WorkerState.ARCHIVED: ("Archived", "default"),
    WorkerState.REVOKED: ("Revoked", "default"),
}
MAX_LISTED_JOBS = 50


class WorkerForm(forms.ModelForm):
    """Edits a worker. No worker moves into the pool of runners or out of it: a runner has a key and no token."""

    def clean_pool(self) -> Pool:
        pool: Pool = self.cleaned_data["pool"]
        worker = self.instance
        if worker.pk is not None and worker.is_runner and pool.pk != worker.pool_id:
            raise forms.ValidationError("A runner stays in the pool of runners. Archive it, and register a worker.")
        if worker.pk is None or pool.pk != worker.pool_id:
            try:
                require_other_pool(pool)
            except Invalid as refusal:
                raise forms.ValidationError(refusal.errors["pool"]) from None
        return pool


class HealthFilter(DropdownFilter):
    """Filters active workers by health."""

    title = "health"
    parameter_name = "health"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(health, HEALTH[health][0]) for health in ("online", "offline", "never_connected")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Worker]) -> QuerySet[Worker]:
        match self.value():
            case "online":
                return queryset.filter(queries.online(database_now()))
            case "offline":
                return queryset.filter(queries.offline(database_now()))
            case "never_connected":
                return queryset.filter(queries.never_connected())
        return queryset


@admin.register(Worker)
class WorkerAdmin(WorkerActionsMixin, CreateWithToken, AuditedAdmin):
    """Registers workers and edits what each may offer."""

    audit_name = "worker"
    form = WorkerForm
    immutable_fields = ("slug",)
    add_description = "Registers a worker that may claim jobs of its pool. The next page shows its token once."
    list_display = ["slug", "health_badge", "pool", "last_heartbeat", "slots", "label_list", "note_text"]
    list_filter = [
        HealthFilter,
        choice_filter("state", "state", WorkerState.choices),
        exact_filter("pool", "pool__slug"),
    ]
    list_select_related = ["pool"]
    search_fields = ["slug__startswith", "worker_id"]
    search_help_text = "Slug (prefix) or worker id"
    ordering = ["slug"]
    fields = ["slug", "pool", "capacity", "labels", "capabilities", "certificate_subject"]
    last_heartbeat = formatting.age_column("last_seen_at", "Last heartbeat")
    note_text = formatting.value_column("note", "Note")

    change_form_outer_before_template = "admin/worker.html"

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Worker, **kwargs: Any
    ) -> HttpResponse:
        """Add the health of the worker and its jobs. `obj` is never None: registration has a page of its own."""
        context |= worker_summary(obj)
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: Worker | None = None) -> bool:
        is_revoked = isinstance(obj, Worker) and obj.state == WorkerState.REVOKED
        return super().has_change_permission(request, obj) and not is_revoked

    def target_of(self, row: Worker) -> str:
        return row.worker_id

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        return queries.with_active_leases(super().get_queryset(request))

    def create(self, request: HttpRequest, values: dict[str, Any]) -> tuple[Worker, str]:
        return credentials.register_worker(**values, cause=cause_of(request))

    @display(description="Health", label=dict(HEALTH.values()))
    def health_badge(self, worker: Worker) -> str:
        return HEALTH[health_of(worker)][0]

    @display(description="Running")
    def slots(self, worker: Any) -> str:
        return f"{worker.active_leases} of {formatting.pluralize(worker.capacity, 'slot')}"

    @display(description="Labels")
    def label_list(self, worker: Worker) -> str:
        return ", ".join(worker.labels)


def worker_summary(worker: Worker) -> dict[str, Any]:
    """Return what `admin/worker.html` shows: the health of a worker and the jobs that it executes."""
    jobs = Job.objects.filter(leases__worker=worker, leases__status="open").order_by("id")[:MAX_LISTED_JOBS]
    return {
        "health": HEALTH[health_of(worker)][0],
        "health_colour": HEALTH[health_of(worker)][1],
        "last_heartbeat": formatting.time_ago(worker.last_seen_at, timezone.now()),
        "leased_jobs": [(job, job_badge(job)) for job in jobs],
    }


def health_of(worker: Worker) -> str:
    """Return the key of a worker's health in HEALTH."""
    if worker.state != WorkerState.ACTIVE:
        return worker.state
    if worker.last_seen_at is None:
        return "never_connected"
    if timezone.now() - worker.last_seen_at >= SILENT_AFTER:
        return "offline"
    return "not_ready" if worker.unready_reason else "online"
