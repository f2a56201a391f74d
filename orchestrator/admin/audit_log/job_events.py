"""The events of all jobs, read-only."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import CreatedFilter, OrganizationFilter, choice_filter, exact_filter
from orchestrator.admin.labels import EVENTS, actor_label
from runtime_jobs.models import Job, JobEvent


@admin.register(JobEvent)
class JobEventAdmin(LargeTableAdmin):
    """Displays events."""

    list_display = ["time", "type", "job_link", "seq", "actor", "transition", "organization"]
    list_filter = [
        choice_filter("event", "event_type", [(event_type, event_type) for event_type in EVENTS]),
        OrganizationFilter,
        exact_filter("actor", "actor_id"),
        CreatedFilter,
    ]
    time = formatting.timestamp_column("created_at", "Time")
    organization = formatting.value_column("org_slug", "Organization")
    event_id = formatting.value_column("event_ulid", "Event id")
    worker = formatting.value_column("worker_id", "Worker")
    correlation = formatting.value_column("correlation_id", "Correlation id")
    previous_hash = formatting.value_column("prev_hash", "Previous hash")
    search_fields = ["job"]
    search_help_text = "Job id"
    ordering = ["-id"]
    fields = ["event_id", "job_link", "seq", "type", "actor", "transition", "payload", "time", "fence"]
    fields += ["worker", "organization", "correlation", "previous_hash", "hash"]

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[JobEvent], search_term: str
    ) -> tuple[QuerySet[JobEvent], bool]:
        """Search by the whole id of a job, which has an index."""
        return (queryset.filter(job__in=[search_term.strip()]) if search_term.strip() else queryset), False

    @display(description="Event")
    def type(self, event: JobEvent) -> SafeString:
        return formatting.code(event.event_type)

    @display(description="Job")
    def job_link(self, event: JobEvent) -> SafeString:
        return formatting.link(formatting.change_url(Job, event.job_id), formatting.code(event.job_id))

    @display(description="Actor")
    def actor(self, event: JobEvent) -> str:
        return actor_label(event.actor_kind, event.actor_id)

    @display(description="State")
    def transition(self, event: JobEvent) -> str:
        if not event.to_state:
            return formatting.NO_VALUE
        return f"{formatting.humanize(event.from_state)} → {formatting.humanize(event.to_state)}".strip()

    @display(description="Payload")
    def payload(self, event: JobEvent) -> SafeString:
        return formatting.key_value_lines(event.payload_json)
