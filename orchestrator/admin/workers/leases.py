"""Leases: who holds which job until when. To look at; a lease is taken away from its job's page. Its id is a key and
appears nowhere, its fingerprint does."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.decorators import display

from leases.models import Lease
from leases.states import OPEN, LeaseState
from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.dashboard.queries import CLOCK_LATE
from orchestrator.admin.filters import any_of, exactly, one_of
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.identifiers import fingerprint
from runtime_jobs.models import Job
from workers.models import Worker

ENDS = ("completed", "failed", "canceled", "released", "unable", "not_acknowledged", "lease_expired", "worker_lost")
COLOURS = {
    LeaseState.GRANTED: "info",
    LeaseState.ACTIVE: "primary",
    LeaseState.COMPLETED: "success",
    LeaseState.CANCELED: "default",
    LeaseState.RELEASED: "warning",
    LeaseState.EXPIRED: "danger",
    LeaseState.REVOKED: "danger",
}


class Due(DropdownFilter):
    title = "due"
    parameter_name = "due"
    parameters: ClassVar = ("due",)

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "Open"), ("overdue", "Open and overdue")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Lease]) -> QuerySet[Lease]:
        if self.value() == "overdue":
            return queryset.filter(state__in=OPEN, expires_at__lte=ClockTimestamp() - CLOCK_LATE)
        return queryset.filter(state__in=OPEN) if self.value() == "open" else queryset


@admin.register(Lease)
class LeaseAdmin(LargeTableAdmin):
    list_display = ["key", "shown_state", "shown_job", "shown_worker", "pool", "since", "heard", "expires", "ended"]
    list_filter = [
        any_of("state", "state", list(LeaseState.choices)),
        Due,
        exactly("worker__slug", "worker"),
        exactly("pool", "pool"),
        one_of("ended_reason", "ended by", [(end, end.replace("_", " ")) for end in ENDS]),
    ]
    search_fields = ["job"]
    search_help_text = "job id"
    ordering = ["-id"]
    list_select_related = ["worker"]
    fields = ["key", "shown_state", "shown_job", "shown_worker", "pool", "fence", "ttl_seconds", "leased"]
    fields += ["acknowledged", "heartbeat", "expiry", "completed", "ended"]
    leased = formatting.time_of("leased_at", "Given")
    acknowledged = formatting.time_of("acknowledged_at", "Taken up")
    heartbeat = formatting.time_of("last_heartbeat_at", "Last heartbeat")
    expiry = formatting.time_of("expires_at", "Expires")
    completed = formatting.time_of("completed_at", "Ended")

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Lease], search_term: str
    ) -> tuple[QuerySet[Lease], bool]:
        """By the whole id of a job, which has an index."""
        return (queryset.filter(job__in=[search_term.strip()]) if search_term.strip() else queryset), False

    @display(description="Fingerprint")
    def key(self, lease: Lease) -> SafeString:
        return formatting.code(fingerprint(lease.lease_ulid))

    @display(description="State", label=COLOURS)
    def shown_state(self, lease: Lease) -> str:
        return lease.state

    @display(description="Job")
    def shown_job(self, lease: Lease) -> SafeString:
        return formatting.link(formatting.change_url(Job, lease.job_id), formatting.code(lease.job_id))

    @display(description="Worker")
    def shown_worker(self, lease: Lease) -> SafeString:
        return formatting.link(formatting.change_url(Worker, lease.worker.pk), lease.worker.slug)

    @display(description="Given")
    def since(self, lease: Lease) -> SafeString:
        return formatting.with_timestamp(formatting.time_ago(lease.leased_at, timezone.now()), lease.leased_at)

    @display(description="Last heard")
    def heard(self, lease: Lease) -> SafeString:
        last = lease.last_heartbeat_at or lease.acknowledged_at
        return formatting.with_timestamp(formatting.time_ago(last, timezone.now()), last)

    @display(description="Expires in")
    def expires(self, lease: Lease) -> str:
        if not lease.is_open:
            return "-"
        left = (lease.expires_at - timezone.now()).total_seconds()
        return formatting.format_duration(left) if left > 0 else f"overdue by {formatting.format_duration(-left)}"

    @display(description="Ended by")
    def ended(self, lease: Lease) -> str:
        return (lease.ended_reason or "-").replace("_", " ")
