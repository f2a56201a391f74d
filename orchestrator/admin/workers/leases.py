"""The list of leases, read-only. A lease is revoked on the page of its job.

The id of a lease is a credential. No page contains it; the fingerprint identifies the lease instead.
"""

from typing import Any

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
from orchestrator.admin.dashboard.queries import OVERDUE_GRACE
from orchestrator.admin.filters import PoolSlugFilter, choice_filter, exact_filter, multiple_choice_filter
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.identifiers import fingerprint
from runtime_jobs.models import Job
from workers.models import Worker

END_REASONS = (
    *("completed", "failed", "canceled", "released", "unable"),
    *("not_acknowledged", "lease_expired", "worker_lost"),
)
COLOURS = {
    LeaseState.GRANTED: "info",
    LeaseState.ACTIVE: "primary",
    LeaseState.COMPLETED: "success",
    LeaseState.CANCELED: "default",
    LeaseState.RELEASED: "warning",
    LeaseState.EXPIRED: "danger",
    LeaseState.REVOKED: "danger",
}


class OpenLeaseFilter(DropdownFilter):
    """Filters open leases, and those whose expiry has passed."""

    title = "open"
    parameter_name = "due"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "Open"), ("overdue", "Open and overdue")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Lease]) -> QuerySet[Lease]:
        if self.value() == "overdue":
            return queryset.filter(state__in=OPEN, expires_at__lte=ClockTimestamp() - OVERDUE_GRACE)
        return queryset.filter(state__in=OPEN) if self.value() == "open" else queryset


LeaseEndFilter = choice_filter(
    "end reason", "ended_reason", [(reason, formatting.humanize(reason).capitalize()) for reason in END_REASONS]
)


@admin.register(Lease)
class LeaseAdmin(LargeTableAdmin):
    """Displays leases."""

    list_display = [
        *("lease", "state_badge", "job_link", "worker_link", "pool"),
        *("granted_age", "heartbeat_age", "expires_in", "end_reason"),
    ]
    list_filter = [
        multiple_choice_filter("state", "state", LeaseState.choices),
        OpenLeaseFilter,
        exact_filter("worker", "worker__slug"),
        PoolSlugFilter,
        LeaseEndFilter,
    ]
    search_fields = ["job"]
    search_help_text = "Job id"
    ordering = ["-id"]
    list_select_related = ["worker"]
    fields = ["lease", "state_badge", "job_link", "worker_link", "pool", "fence", "ttl", "granted"]
    fields += ["acknowledged", "heartbeat", "expires", "ended", "end_reason"]
    granted = formatting.timestamp_column("leased_at", "Granted")
    granted_age = formatting.age_column("leased_at", "Granted")
    acknowledged = formatting.timestamp_column("acknowledged_at", "Acknowledged")
    heartbeat = formatting.timestamp_column("last_heartbeat_at", "Last heartbeat")
    expires = formatting.timestamp_column("expires_at", "Expires")
    ended = formatting.timestamp_column("completed_at", "Ended")
    ttl = formatting.value_column("ttl_seconds", "TTL (seconds)")

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Lease], search_term: str
    ) -> tuple[QuerySet[Lease], bool]:
        """Search by the whole id of a job, which has an index."""
        return (queryset.filter(job__in=[search_term.strip()]) if search_term.strip() else queryset), False

    @display(description="Fingerprint")
    def lease(self, lease: Lease) -> SafeString:
        return formatting.code(fingerprint(lease.lease_ulid))

    @display(description="State", label=COLOURS)
    def state_badge(self, lease: Lease) -> str:
        return lease.state

    @display(description="Job")
    def job_link(self, lease: Lease) -> SafeString:
        return formatting.link(formatting.change_url(Job, lease.job_id), formatting.code(lease.job_id))

    @display(description="Worker")
    def worker_link(self, lease: Lease) -> SafeString:
        return formatting.link(formatting.change_url(Worker, lease.worker.pk), lease.worker.slug)

    @display(description="Last heartbeat")
    def heartbeat_age(self, lease: Lease) -> SafeString:
        last = lease.last_heartbeat_at or lease.acknowledged_at
        return formatting.with_timestamp(formatting.time_ago(last, timezone.now()), last)

    @display(description="Expires in")
    def expires_in(self, lease: Lease) -> str:
        if not lease.is_open:
            return formatting.NO_VALUE
        left = (lease.expires_at - timezone.now()).total_seconds()
        return formatting.format_duration(left) if left > 0 else f"overdue by {formatting.format_duration(-left)}"

    @display(description="End reason")
    def end_reason(self, lease: Lease) -> str:
        return formatting.humanize(lease.ended_reason) or formatting.NO_VALUE
