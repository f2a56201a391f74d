"""The columns of the list of jobs."""

from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import FixedOrderChangeList
from orchestrator.admin.labels import JOB_COLOURS, WAIT_COLOURS, job_badge, wait_label
from orchestrator.selectors.pending_reasons.service import pending_for
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

COLUMNS = ["state_badge", "job", "project", "source", "pool_and_trigger", "queue_time", "run_time"]


class PendingReasonChangeList(FixedOrderChangeList):
    """Adds to each waiting job of a page the reason why it waits."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        page: list[Any] = list(self.result_list)  # type: ignore[has-type] # Django's, without a type
        pending = pending_for(page)
        for job in page:
            job.reason = pending[job.pk].reason
        self.result_list = page


class JobColumns:
    """Formats the cells. Uses the row and its `reason` only, so a list costs the same with fifty rows as with one."""

    @display(description="State", label=JOB_COLOURS)
    def state_badge(self, job: Job) -> tuple[str, str]:
        badge = job_badge(job)
        return badge.kind, badge.text

    @display(description="Job")
    def job(self, job: Job) -> SafeString:
        """Format the id; below it the age, the attempt of a retry, and the reason of a failure or cancel."""
        age = formatting.with_timestamp(formatting.time_ago(job.created_at, timezone.now()), job.created_at)
        details = [age, f"attempt {job.attempt}" if job.attempt > 1 else "", _end_reason(job)]
        joined = format_html_join(" · ", "{}", ((detail,) for detail in details if detail))
        return formatting.two_lines(formatting.code(job.job_ulid), joined)

    @display(description="Project")
    def project(self, job: Job) -> SafeString:
        return formatting.two_lines(job.project_slug, job.org_slug)

    @display(description="Repository")
    def source(self, job: Job) -> SafeString:
        commit = formatting.code((job.git_commit or "")[:12])
        return formatting.two_lines(formatting.repository_of(job), commit if job.git_commit else job.job_type)

    @display(description="Pool")
    def pool_and_trigger(self, job: Job) -> SafeString:
        return formatting.two_lines(job.pool, formatting.humanize(job.trigger_kind))

    @display(description="Queue time")
    def queue_time(self, job: Job) -> SafeString:
        """Format the time from submit to start; of a waiting job also the reason."""
        duration = formatting.elapsed(job.created_at, job.started_at or job.finished_at or timezone.now())
        reason = getattr(job, "reason", None)
        if reason is None:
            return formatting.two_lines(duration, "")
        label = format_html(
            '<i class="{}" title="{}">{}</i>', WAIT_COLOURS.get(reason.code, ""), reason.message, wait_label(reason)
        )
        return formatting.two_lines(duration, label)

    @display(description="Run time")
    def run_time(self, job: Job) -> str:
        return formatting.elapsed(job.started_at, job.finished_at or timezone.now())


def _end_reason(job: Job) -> str:
    if job.state == JobState.FAILED:
        return formatting.humanize(job.failure_reason)
    return formatting.humanize(job.cancel_reason) if job.state == JobState.CANCELED else ""
