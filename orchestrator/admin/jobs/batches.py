"""The pages of batches: jobs that were submitted together, with the buttons Cancel and Rerun."""

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.db import Error
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, render_confirm
from orchestrator.admin.filters import CreatedFilter, OrganizationFilter, ProjectFilter, TriggerFilter, exact_filter
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.labels import job_badge
from orchestrator.core.cause import Cause
from orchestrator.services import batches
from orchestrator.services.batches import aggregated_state
from runtime_jobs.batch_state import BATCH_FINAL, BatchState
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.identifiers import is_id, new_id
from runtime_jobs.models import Batch, Job
from runtime_jobs.specs import configured_policy

COLOURS = {
    BatchState.QUEUED: "info",
    BatchState.RUNNING: "primary",
    BatchState.CANCEL_REQUESTED: "warning",
    BatchState.SUCCEEDED: "success",
    BatchState.FAILED: "danger",
    BatchState.CANCELED: "default",
    BatchState.TIMED_OUT: "danger",
}
JOB_COLUMNS = (
    *("batch_id", "job_ulid", "root_job_ulid", "attempt", "state", "failure_reason", "exit_code"),
    *("cancel_requested_at", "cancel_reason", "job_type", "spec", "command_json"),
)


@admin.register(Batch)
class BatchAdmin(LargeTableAdmin):
    """Displays batches, cancels them and reruns them."""

    list_display = ["state_badge", "batch_id", "tenant", "commit", "trigger", "job_count", "age"]
    list_display_links = ["batch_id"]
    list_filter = [
        OrganizationFilter,
        ProjectFilter,
        exact_filter("commit", "git_commit"),
        TriggerFilter,
        CreatedFilter,
    ]
    ordering = ["-id"]
    fields = ["state_text", "batch_id", "tenant", "repository", "ref", "commit_hash", "trigger", "trigger_actor"]
    fields += ["rerun", "created", "cancel_requested", "jobs", "correlation"]
    actions_detail = ["cancel_batch", "rerun_batch"]
    created = formatting.timestamp_column("created_at", "Created")
    age = formatting.age_column("created_at", "Age")
    cancel_requested = formatting.timestamp_column("cancel_requested_at", "Cancel requested")
    repository = formatting.value_column("repo_url", "Repository")
    commit_hash = formatting.value_column("git_commit", "Commit")
    ref = formatting.value_column("git_ref", "Ref")
    rerun = formatting.value_column("rerun_of", "Rerun of")
    correlation = formatting.value_column("correlation_id", "Correlation id")

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.operate_job")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Batch]:
        """Prefetch the jobs: one more query for a whole page."""
        jobs = Job.objects.only(*JOB_COLUMNS).order_by("root_job_ulid", "attempt")
        return super().get_queryset(request).prefetch_related(Prefetch("jobs", jobs))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Batch | None:
        """Accept the public id as well: logs contain only that one."""
        if is_id(object_id, "rtb"):
            return self.get_queryset(request).filter(batch_ulid=object_id).first()
        return super().get_object(request, object_id, from_field)

    # --- columns ------------------------------------------------------------------------------------------------------

    @display(description="State", label=COLOURS)
    def state_badge(self, batch: Batch) -> tuple[str, str]:
        return aggregated_state(batch, batch.jobs.all()), self.state_text(batch)

    @display(description="State")
    def state_text(self, batch: Batch) -> str:
        return formatting.humanize(aggregated_state(batch, batch.jobs.all()).value)

    @display(description="Batch")
    def batch_id(self, batch: Batch) -> SafeString:
        return formatting.code(batch.batch_ulid)

    @display(description="Organization")
    def tenant(self, batch: Batch) -> SafeString:
        return formatting.two_lines(batch.org_slug, batch.project_slug)

    @display(description="Commit")
    def commit(self, batch: Batch) -> SafeString:
        return formatting.two_lines(
            formatting.code((batch.git_commit or formatting.NO_VALUE)[:12]), batch.git_ref or ""
        )

    @display(description="Trigger")
    def trigger(self, batch: Batch) -> str:
        return formatting.humanize(batch.trigger_kind)

    @display(description="Jobs")
    def job_count(self, batch: Batch) -> int:
        return len({job.root_job_ulid for job in batch.jobs.all()})

    @display(description="Jobs and attempts")
    def jobs(self, batch: Batch) -> SafeString:
        rows = (
            (
                formatting.change_url(Job, job.job_ulid),
                job.job_ulid,
                _job_name(job),
                job.attempt,
                " · ".join(filter(None, (job_badge(job).text, formatting.humanize(job.failure_reason)))),
            )
            for job in batch.jobs.all()
        )
        return format_html_join("", '<div><a class="link code" href="{}">{}</a> {} · attempt {} · {}</div>', rows)

    # --- buttons ------------------------------------------------------------------------------------------------------

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """Offer Cancel until the batch has ended. The operation itself checks the state again."""
        batch = self.get_object(request, object_id)
        has_ended = batch is None or aggregated_state(batch, batch.jobs.all()) in BATCH_FINAL
        buttons = super().get_actions_detail(request, object_id)
        return [button for button in buttons if not has_ended or button.path != "cancel"]

    @action(
        description="Cancel", url_path="cancel", permissions=["operate"], icon="block", variant=ActionVariant.DANGER
    )
    def cancel_batch(self, request: HttpRequest, object_id: str) -> HttpResponse:
        description = "Queued jobs are canceled at once. The workers of running jobs are asked to stop them."
        return self._confirm_and_run(request, object_id, "Cancel", description, _cancel, danger=True)

    @action(description="Rerun", url_path="rerun", permissions=["operate"], icon="replay")
    def rerun_batch(self, request: HttpRequest, object_id: str) -> HttpResponse:
        description = "Queues the same jobs again as a new batch. This batch does not change."
        return self._confirm_and_run(request, object_id, "Rerun", description, _rerun)

    def _confirm_and_run(
        self,
        request: HttpRequest,
        object_id: str,
        label: str,
        description: str,
        operation: Any,
        *,
        danger: bool = False,
    ) -> HttpResponse:
        batch = self.existing_row(request, object_id)
        form = ReasonForm(request.POST or None)
        back = formatting.change_url(Batch, batch.batch_ulid)
        if request.method != "POST" or not form.is_valid():
            page = ConfirmPage(f"{label} {batch.batch_ulid}", description, label, back, danger=danger)
            return render_confirm(self, request, page, form)
        try:
            messages.success(request, operation(request, batch, form.cleaned_data["reason"]))
        except Invalid as refusal:
            messages.warning(request, " ".join(text for texts in refusal.errors.values() for text in texts))
        except LifecycleError as refusal:
            messages.warning(request, refusal.message)
        except Error:
            messages.warning(request, "The database is busy. Nothing was changed; try again.")
        return HttpResponseRedirect(back)


def _job_name(job: Job) -> str:
    return str(job.spec.get("name") or " ".join(job.command_json or ()))[:80]


def _cancel(request: HttpRequest, batch: Batch, reason: str) -> str:
    outcome = batches.cancel_batch(
        batch_ulid=batch.batch_ulid,
        actor=actor_of(request),
        deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
        message=reason,
    )
    return "Cancel requested from the workers." if outcome.accepted else "Canceled."


def _rerun(request: HttpRequest, batch: Batch, reason: str) -> str:
    """Rerun the batch. The new batch stores the reason."""
    outcome = batches.rerun_batch(
        batch_ulid=batch.batch_ulid,
        policy_for=configured_policy,
        default_pool=settings.DEFAULT_POOL,
        cause=Cause(actor_of(request), reason),
        correlation_id=new_id("req"),
    )
    return f"Queued again as {outcome.batch.batch_ulid}."
