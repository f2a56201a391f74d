"""The list of runs that ingest has received. Each links to the run's own page, outside the admin."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import OrganizationFilter, ProjectFilter
from orchestrator.ingest.models import Run
from runtime_jobs.models import Job


@admin.register(Run)
class RunAdmin(LargeTableAdmin):
    """Displays runs without their payload."""

    list_display = ["run_link", "job_link", "organization", "project", "age"]
    list_display_links = None
    list_filter = [OrganizationFilter, ProjectFilter]
    search_fields = ["run_id"]
    search_help_text = "Run id or job id"
    ordering = ["-id"]
    fields = ["run_link", "job_link", "organization", "project", "worker", "digest", "received"]
    organization = formatting.value_column("org_slug", "Organization")
    project = formatting.value_column("project_slug", "Project")
    worker = formatting.value_column("worker_id", "Worker")
    digest = formatting.value_column("payload_sha256", "Payload SHA-256")
    received = formatting.timestamp_column("received_at", "Received")
    age = formatting.age_column("received_at", "Received")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Leave out the payload: a page of fifty could be a hundred megabytes."""
        return super().get_queryset(request).defer("payload")

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        text = search_term.strip()
        named = queryset.filter(job_id=text) if text.startswith("rtj_") else queryset.filter(run_id=text)
        return (named if text else queryset), False

    @display(description="Run")
    def run_link(self, run: Run) -> SafeString:
        return formatting.link(formatting.run_url(run.run_id), formatting.code(run.run_id))

    @display(description="Job")
    def job_link(self, run: Run) -> SafeString:
        return formatting.link(formatting.change_url(Job, run.job_id), formatting.code(run.job_id))
