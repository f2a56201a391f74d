"""Runs that ingest has taken. Their own page says what happened in them."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import exactly
from orchestrator.models import Run
from runtime_jobs.models import Job


@admin.register(Run)
class RunAdmin(LargeTableAdmin):
    list_display = ["shown_run", "shown_job", "org_slug", "project_slug", "taken"]
    list_display_links = None
    list_filter = [exactly("org_slug", "organization"), exactly("project_slug", "project")]
    search_fields = ["run_id"]
    search_help_text = "run or job id"
    ordering = ["-id"]
    fields = ["shown_run", "shown_job", "org_slug", "project_slug", "worker_id", "payload_sha256", "received"]

    received = formatting.time_of("received_at", "Taken")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Without the payload: a page of fifty could be a hundred megabytes."""
        return super().get_queryset(request).defer("payload")

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        text = search_term.strip()
        named = queryset.filter(job_id=text) if text.startswith("rtj_") else queryset.filter(run_id=text)
        return (named if text else queryset), False

    @display(description="Run")
    def shown_run(self, run: Run) -> SafeString:
        return formatting.link(formatting.run_page(run.run_id), formatting.code(run.run_id))

    @display(description="Job")
    def shown_job(self, run: Run) -> SafeString:
        return formatting.link(formatting.change_url(Job, run.job_id), formatting.code(run.job_id))

    @display(description="Taken")
    def taken(self, run: Run) -> SafeString:
        return formatting.with_timestamp(formatting.time_ago(run.received_at, timezone.now()), run.received_at)
