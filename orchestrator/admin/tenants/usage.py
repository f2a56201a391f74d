"""Usage: the ledger of billed minutes, read-only, with a download for whoever charges."""

import csv
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import DateRangeFilter, JobTypeFilter, OrganizationFilter, ProjectFilter, exact_filter
from runtime_jobs.models import Job, UsageRecord

COLUMNS = (
    *("recorded_at", "org_slug", "project_slug", "job_ulid", "job_type", "minute", "minutes"),
    *("started_at", "billed_until"),
)
MAX_ROWS = 200_000  # of a download, which is built in memory: 30 MB


class RecordedFilter(DateRangeFilter):
    """Filters by the day of the record."""

    title = "recorded"
    column = "recorded_at"


@admin.register(UsageRecord)
class UsageRecordAdmin(LargeTableAdmin):
    """Displays usage records. The minutes of a job are the sum of its records."""

    list_display = ["recorded", "organization", "project", "job_link", "job_type", "new_minutes", "total"]
    list_display_links = ["recorded"]
    list_filter = [OrganizationFilter, ProjectFilter, JobTypeFilter, exact_filter("job", "job_ulid"), RecordedFilter]
    ordering = ["-id"]
    fields = [
        "recorded",
        "organization",
        "project",
        "job_link",
        "job_type",
        "new_minutes",
        "total",
        "started",
        "billed",
    ]
    list_before_template = "admin/usage_download.html"
    recorded = formatting.timestamp_column("recorded_at", "Recorded")
    organization = formatting.value_column("org_slug", "Organization")
    project = formatting.value_column("project_slug", "Project")
    new_minutes = formatting.value_column("minutes", "Billed minutes")
    total = formatting.value_column("minute", "Total of the job")
    started = formatting.timestamp_column("started_at", "Execution started")
    billed = formatting.timestamp_column("billed_until", "Billed until")

    @display(description="Job")
    def job_link(self, record: UsageRecord) -> SafeString:
        return formatting.link(formatting.change_url(Job, record.job_ulid), formatting.code(record.job_ulid))

    def get_urls(self) -> list[Any]:
        download = path("csv", self.admin_site.admin_view(self.download), name="runtime_jobs_usagerecord_csv")
        return [download, *super().get_urls()]

    def download(self, request: HttpRequest) -> HttpResponse:
        """Return the records that the filters of the list select, newest first."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        selected = self.get_changelist_instance(request).queryset
        rows = list(selected.values_list(*COLUMNS)[: MAX_ROWS + 1])
        if len(rows) > MAX_ROWS:
            messages.warning(request, f"The filters select more than {MAX_ROWS} records. Narrow the period.")
            return HttpResponseRedirect(f"{formatting.changelist_url(UsageRecord)}?{request.GET.urlencode()}")
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = 'attachment; filename="usage.csv"'
        writer = csv.writer(response)
        writer.writerow(COLUMNS)
        writer.writerows([value.isoformat() if isinstance(value, datetime) else value for value in row] for row in rows)
        return response
