"""Jobs that belong together, with what they have come to. To look at, to cancel and to run again."""

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.db import Error
from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from orchestrator.admin.filters import days, exactly, one_of
from orchestrator.http.api.job_policies import policy_of
from orchestrator.services.batches import rolled_up
from runtime_jobs.batch_state import BATCH_FINAL, BatchState
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.identifiers import is_id, new_id
from runtime_jobs.models import Batch, Job
from runtime_jobs.states import TRIGGER_KINDS

COLOURS = {
    BatchState.QUEUED: "info",
    BatchState.RUNNING: "primary",
    BatchState.CANCEL_REQUESTED: "warning",
    BatchState.SUCCEEDED: "success",
    BatchState.FAILED: "danger",
    BatchState.CANCELED: "default",
    BatchState.TIMED_OUT: "danger",
}
OF_A_JOB = ("batch_id", "job_ulid", "root_job_ulid", "attempt", "state", "failure_reason", "spec", "command_json")


@admin.register(Batch)
class BatchAdmin(LargeTableAdmin):
    list_display = ["shown_state", "shown_id", "tenant", "commit", "trigger", "count", "age"]
    list_display_links = ["shown_id"]
    list_filter = [
        exactly("org_slug", "organization"),
        exactly("project_slug", "project"),
        exactly("git_commit", "commit"),
        one_of("trigger_kind", "trigger", [(kind, kind.replace("_", " ")) for kind in TRIGGER_KINDS]),
        days("created_at", "created"),
    ]
    ordering = ["-id"]
    fields = ["shown_state", "shown_id", "tenant", "repo_url", "git_ref", "commit", "trigger", "trigger_actor"]
    fields += ["rerun_of", "time", "cancel", "jobs", "correlation_id"]
    actions_detail = ["cancel_batch", "rerun_batch"]
    time = formatting.time_of("created_at", "Created")

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.operate_job")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Batch]:
        """With its jobs, in one more query for a whole page."""
        jobs = Job.objects.only(*OF_A_JOB).order_by("root_job_ulid", "attempt")
        return super().get_queryset(request).prefetch_related(Prefetch("jobs", jobs))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Batch | None:
        """By its public id too: that is what logs and people name it by."""
        if is_id(object_id, "rtb"):
            return self.get_queryset(request).filter(batch_ulid=object_id).first()
        return super().get_object(request, object_id, from_field)

    # --- what is shown ------------------------------------------------------------------------------------------------

    @display(description="State", label=COLOURS)
    def shown_state(self, batch: Batch) -> tuple[str, str]:
        state = rolled_up(batch, batch.jobs.all())
        return state, state.replace("_", " ")

    @display(description="Batch")
    def shown_id(self, batch: Batch) -> SafeString:
        return formatting.code(batch.batch_ulid)

    @display(description="Organization")
    def tenant(self, batch: Batch) -> SafeString:
        return formatting.two_lines(batch.org_slug, batch.project_slug)

    @display(description="Commit")
    def commit(self, batch: Batch) -> SafeString:
        return formatting.two_lines(formatting.code((batch.git_commit or "-")[:12]), batch.git_ref or "")

    @display(description="Trigger")
    def trigger(self, batch: Batch) -> str:
        return batch.trigger_kind.replace("_", " ")

    @display(description="Jobs")
    def count(self, batch: Batch) -> int:
        return len({job.root_job_ulid for job in batch.jobs.all()})

    @display(description="Age")
    def age(self, batch: Batch) -> SafeString:
        return formatting.with_timestamp(formatting.time_ago(batch.created_at, timezone.now()), batch.created_at)

    @display(description="Cancel")
    def cancel(self, batch: Batch) -> str:
        return f"asked {formatting.format_utc(batch.cancel_requested_at)}" if batch.cancel_requested_at else "-"

    @display(description="Jobs and their attempts")
    def jobs(self, batch: Batch) -> SafeString:
        rows = (
            (
                formatting.change_url(Job, job.job_ulid),
                job.job_ulid,
                _name(job),
                job.attempt,
                job.state,
                job.failure_reason or "",
            )
            for job in batch.jobs.all()
        )
        return format_html_join("", '<div><a class="link code" href="{}">{}</a> {} · attempt {} · {} {}</div>', rows)

    # --- the verbs ----------------------------------------------------------------------------------------------------

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """No cancel for what has ended; the verb has the last word."""
        batch = self.get_object(request, object_id)
        ended = batch is None or rolled_up(batch, batch.jobs.all()) in BATCH_FINAL
        return [one for one in super().get_actions_detail(request, object_id) if not ended or one.path != "cancel"]

    @action(
        description="Cancel", url_path="cancel", permissions=["operate"], icon="block", variant=ActionVariant.DANGER
    )
    def cancel_batch(self, request: HttpRequest, object_id: str) -> HttpResponse:
        lead = "Jobs that wait end at once; the workers of those that run are told to stop."
        return self._ask_and_do(request, object_id, "Cancel", lead, _cancel, danger=True)

    @action(description="Run again", url_path="rerun", permissions=["operate"], icon="replay")
    def rerun_batch(self, request: HttpRequest, object_id: str) -> HttpResponse:
        lead = "The same jobs are queued once more, as a new batch. This one stays as it is."
        return self._ask_and_do(request, object_id, "Run again", lead, _rerun)

    def _ask_and_do(
        self, request: HttpRequest, object_id: str, title: str, lead: str, act: Any, *, danger: bool = False
    ) -> HttpResponse:
        batch = self.get_object(request, object_id)
        if batch is None:
            raise Http404
        form = ReasonForm(request.POST or None)
        here = formatting.change_url(Batch, batch.batch_ulid)
        if request.method != "POST" or not form.is_valid():
            question = ConfirmPage(f"{title} {batch.batch_ulid}", lead, title, here, danger=danger)
            return render_confirm(self, request, question, form)
        try:
            messages.success(request, act(request, batch, form.cleaned_data["reason"]))
        except Invalid as refusal:
            messages.warning(request, " ".join(text for texts in refusal.errors.values() for text in texts))
        except LifecycleError as refusal:
            messages.warning(request, refusal.message)
        except Error:
            messages.warning(request, "The database was busy; nothing has changed. Try again.")
        return HttpResponseRedirect(here)


def _name(job: Job) -> str:
    return str(job.spec.get("name") or " ".join(job.command_json or ()))[:80]


def _end(job: Job) -> str:
    return " ".join(filter(None, (job.state, job.failure_reason))).replace("_", " ")


def _cancel(request: HttpRequest, batch: Batch, reason: str) -> str:
    outcome = services.cancel_batch(
        batch_ulid=batch.batch_ulid,
        actor=actor_of(request),
        deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
        message=reason,
    )
    return "Workers have been told to stop." if outcome.accepted else "Canceled."


def _rerun(request: HttpRequest, batch: Batch, reason: str) -> str:
    """The reason is kept with the new batch."""
    made = services.rerun_batch(
        batch_ulid=batch.batch_ulid,
        policy_of=policy_of,
        default_pool=settings.DEFAULT_POOL,
        actor=actor_of(request),
        correlation_id=new_id("req"),
        source_address=None,
        reason=reason,
    )
    return f"Queued again as {made.batch.batch_ulid}."
