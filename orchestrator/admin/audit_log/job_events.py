"""The trail of all jobs, to look at."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import days, exactly, one_of
from orchestrator.admin.labels import EVENTS
from runtime_jobs.models import Job, JobEvent


@admin.register(JobEvent)
class JobEventAdmin(LargeTableAdmin):
    list_display = ["time", "shown_kind", "shown_job", "seq", "actor", "moved", "org_slug"]
    list_filter = [
        one_of("event_type", "kind", [(kind, kind) for kind in EVENTS]),
        exactly("org_slug", "organization"),
        exactly("actor_id", "actor"),
        days("created_at", "time"),
    ]
    time = formatting.time_of("created_at", "Time")
    search_fields = ["job"]
    search_help_text = "job id"
    ordering = ["-id"]
    fields = ["event_ulid", "shown_job", "seq", "event_type", "actor", "moved", "payload", "time", "fence"]
    fields += ["worker_id", "org_slug", "correlation_id", "prev_hash", "hash"]

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[JobEvent], search_term: str
    ) -> tuple[QuerySet[JobEvent], bool]:
        """By the whole id of a job, which has an index."""
        return (queryset.filter(job__in=[search_term.strip()]) if search_term.strip() else queryset), False

    @display(description="Kind")
    def shown_kind(self, event: JobEvent) -> SafeString:
        return formatting.code(event.event_type)

    @display(description="Job")
    def shown_job(self, event: JobEvent) -> SafeString:
        return formatting.link(formatting.change_url(Job, event.job_id), formatting.code(event.job_id))

    @display(description="By")
    def actor(self, event: JobEvent) -> str:
        return f"{event.actor_kind} {event.actor_id}"

    @display(description="State")
    def moved(self, event: JobEvent) -> str:
        return f"{event.from_state or ''} → {event.to_state}" if event.to_state else "-"

    @display(description="Facts")
    def payload(self, event: JobEvent) -> SafeString:
        return formatting.as_lines(event.payload_json)
