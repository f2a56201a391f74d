"""Reports of benchmark runs, read-only: the request, and what became of its results."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.filters import CreatedFilter, exact_filter
from orchestrator.results.models import Report
from runtime_jobs.models import Job


@admin.register(Report)
class ReportAdmin(LargeTableAdmin):
    """Displays reports and the outcome of reading their results."""

    list_display = ["report", "outcome", "metric_count", "project_and_branch", "testbed", "job_link"]
    list_display_links = ["report"]
    list_filter = [
        exact_filter("organization", "project__organization__slug"),
        exact_filter("project", "project__slug"),
        exact_filter("branch", "branch__name"),
        CreatedFilter,
    ]
    list_select_related = ["project__organization", "branch", "testbed", "result"]
    search_fields = ["uuid"]
    search_help_text = "Report UUID or job id"
    ordering = ["-id"]
    fields = [
        *("report_id", "outcome", "error", "metric_count", "project_name", "branch", "testbed", "spec", "git_hash"),
        *(
            "adapter_name",
            "average_name",
            "fold_name",
            "job_link",
            "started",
            "ended",
            "duration",
            "created_by",
            "created",
        ),
    ]
    # The names of the API, not those of the choices.
    adapter_name = formatting.value_column("adapter", "Adapter")
    average_name = formatting.value_column("average", "Average")
    fold_name = formatting.value_column("fold", "Fold")
    created = formatting.timestamp_column("created_at", "Created")

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Report], search_term: str
    ) -> tuple[QuerySet[Report], bool]:
        text = search_term.strip().replace("\0", "")
        if not text:
            return queryset, False
        if text.startswith("rtj_"):
            return queryset.filter(job_id=text), False
        return (queryset.filter(uuid=text) if _is_uuid(text) else queryset.none()), False

    @display(description="Report")
    def report(self, report: Report) -> SafeString:
        """Format the UUID; below it the age."""
        age = formatting.with_timestamp(formatting.time_ago(report.created_at, timezone.now()), report.created_at)
        return formatting.two_lines(formatting.code(report.uuid), age)

    @display(description="Project")
    def project_and_branch(self, report: Report) -> SafeString:
        return formatting.two_lines(report.project, report.branch)

    @display(description="Report")
    def report_id(self, report: Report) -> SafeString:
        return formatting.code(report.uuid)

    @display(description="Result", label={"read": "success", "unreadable": "danger", "none yet": "info"})
    def outcome(self, report: Report) -> str:
        result = _result(report)
        if result is None:
            return "none yet"
        return "unreadable" if result.error else "read"

    @display(description="Error")
    def error(self, report: Report) -> str:
        result = _result(report)
        return result.error if result and result.error else formatting.NO_VALUE

    @display(description="Metrics")
    def metric_count(self, report: Report) -> str:
        result = _result(report)
        return formatting.NO_VALUE if result is None else f"{result.metric_count:,}"

    @display(description="Project")
    def project_name(self, report: Report) -> str:
        return str(report.project)

    @display(description="Job")
    def job_link(self, report: Report) -> SafeString | str:
        if report.job_id is None:
            return formatting.NO_VALUE
        return formatting.link(formatting.change_url(Job, report.job_id), formatting.code(report.job_id))

    @display(description="Started")
    def started(self, report: Report) -> str:
        result = _result(report)
        return formatting.format_utc(result.start_time if result and result.start_time else report.start_time)

    @display(description="Ended")
    def ended(self, report: Report) -> str:
        result = _result(report)
        return formatting.format_utc(result.end_time if result and result.end_time else report.end_time)

    @display(description="Duration")
    def duration(self, report: Report) -> str:
        result = _result(report)
        if result is None or result.duration_seconds is None:
            return formatting.NO_VALUE
        return formatting.format_duration(result.duration_seconds)


def _result(report: Report) -> Any:
    return getattr(report, "result", None)


def _is_uuid(text: str) -> bool:
    digits = text.replace("-", "")
    return len(digits) == 32 and all(digit in "0123456789abcdefABCDEF" for digit in digits)
