"""The columns of the list of jobs."""

from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import formatting
from orchestrator.admin.base import FixedOrderChangeList
from orchestrator.admin.labels import JOB_COLOURS, WAITING_COLOURS, brief
from orchestrator.selectors.pending_reasons.service import pending_for
from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES, JobState

COLUMNS = ["shown_state", "job", "tenant", "source", "shown_pool", "age", "waited", "ran"]


class WithPendingReason(FixedOrderChangeList):
    """A page of the list, each waiting job with the reason why."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        page: list[Any] = list(self.result_list)  # type: ignore[has-type] # Django's, which says no type
        waiting = pending_for(page)
        for job in page:
            job.reason = waiting[job.pk].reason
        self.result_list = page


class JobColumns:
    """Each from the row, and what `Explained` has looked up for all of them: a list costs the same with fifty rows as
    with one."""

    @display(description="State", label=JOB_COLOURS)
    def shown_state(self, job: Job) -> tuple[str, str]:
        if job.cancel_requested_at and job.state in LEASED_STATES:
            return "stopping", "stopping"
        return job.state, job.public_status if job.is_final else job.state.replace("_", " ")

    @display(description="Job")
    def job(self, job: Job) -> SafeString:
        """Its id; which attempt it is, and how it failed, below."""
        return formatting.two_lines(
            formatting.code(job.job_ulid), " · ".join(filter(None, (f"attempt {job.attempt}", _why(job))))
        )

    @display(description="Organization")
    def tenant(self, job: Job) -> SafeString:
        return formatting.two_lines(job.org_slug, job.project_slug)

    @display(description="Repository")
    def source(self, job: Job) -> SafeString:
        name = f"{job.repo_owner}/{job.repo_name}" if job.repo_name else job.job_type
        return formatting.two_lines(name, formatting.code((job.git_commit or "")[:12]))

    @display(description="Pool")
    def shown_pool(self, job: Job) -> SafeString:
        return formatting.two_lines(job.pool, job.trigger_kind.replace("_", " "))

    @display(description="Age")
    def age(self, job: Job) -> SafeString:
        return formatting.with_timestamp(
            formatting.format_duration((timezone.now() - job.created_at).total_seconds()), job.created_at
        )

    @display(description="Waited")
    def waited(self, job: Job) -> SafeString:
        """How long; and what for, if it waits still."""
        long = formatting.elapsed(job.created_at, job.started_at or job.finished_at or timezone.now())
        reason = getattr(job, "reason", None)
        if reason is None:
            return formatting.two_lines(long, "")
        facts = (WAITING_COLOURS.get(reason.code, ""), reason.message, brief(reason))
        return formatting.two_lines(long, format_html('<i class="{}" title="{}">{}</i>', *facts))

    @display(description="Ran")
    def ran(self, job: Job) -> str:
        return formatting.elapsed(job.started_at, job.finished_at or timezone.now())


def _why(job: Job) -> str:
    if job.state == JobState.FAILED:
        return (job.failure_reason or "").replace("_", " ")
    return (job.cancel_reason or "").replace("_", " ") if job.state == JobState.CANCELED else ""
