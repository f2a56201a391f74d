"""The pages of workflow runs, with the buttons Approve, Cancel and Rerun, and of workflow files that were rejected."""

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, confirm_for_row, render_confirm
from orchestrator.admin.filters import CreatedFilter, choice_filter, exact_filter
from orchestrator.admin.jobs.rerun_form import RerunForm
from orchestrator.admin.jobs.workflow_run_page import COLOURS, workflow_run_page
from orchestrator.core.cause import Cause
from orchestrator.http.client_ip import client_address
from orchestrator.services import batches
from orchestrator.workflows import approval, pins
from orchestrator.workflows.requests import rerun
from orchestrator.workflows.reruns import RerunRequest, RerunScope
from orchestrator.workflows.run_reads import state_of_run
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.identifiers import new_id
from runtime_jobs.models import RejectedWorkflow, RunHold, WorkflowEvent, WorkflowRun
from runtime_jobs.states import Conclusion

IN_PROGRESS = "in progress"
TITLE = "{button}: {row.repository.full_name} #{row.run_index}"


HeadShaFilter = exact_filter("commit", "head_sha")
WorkflowFileFilter = exact_filter("workflow file", "workflow_file")
RepositoryNameFilter = exact_filter("repository", "repository__name")
WorkflowEventFilter = choice_filter("event", "event", WorkflowEvent.choices)


@admin.register(WorkflowRun)
class WorkflowRunAdmin(LargeTableAdmin):
    """Displays workflow runs, approves, cancels and reruns them."""

    list_display = ["state_badge", "number", "workflow", "commit", "event_text", "started_by", "age"]
    list_display_links = ["number"]
    list_filter = [
        choice_filter("conclusion", "conclusion", Conclusion.choices),
        choice_filter("hold", "hold", RunHold.choices),
        RepositoryNameFilter,
        WorkflowFileFilter,
    ]
    list_filter += [HeadShaFilter, WorkflowEventFilter, CreatedFilter]
    list_select_related = ["repository", "batch"]
    ordering = ["-id"]
    fields = ["number"]  # the template shows the run
    change_form_template = "admin/workflow_run.html"
    actions_detail = ["approve_run", "cancel_run", "rerun_run", "rerun_failed", "pin", "unpin"]
    age = formatting.age_column("created_at", "Age")
    started_by = formatting.value_column("actor", "Actor")

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.operate_job")

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkflowRun]:
        return super().get_queryset(request).select_related("repository__project__organization", "batch", "parent")

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: WorkflowRun, **kwargs: Any
    ) -> HttpResponse:
        context["page"] = workflow_run_page(obj, now=timezone.now())
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    # --- columns ------------------------------------------------------------------------------------------------------

    @display(description="State", label=COLOURS | {IN_PROGRESS: "primary"})
    def state_badge(self, run: WorkflowRun) -> tuple[str, str]:
        state = run.conclusion or run.hold or IN_PROGRESS
        return state, formatting.humanize(state)

    @display(description="Run")
    def number(self, run: WorkflowRun) -> SafeString:
        return formatting.two_lines(f"{run.repository.full_name} #{run.run_index}", f"run {run.pk}")

    @display(description="Workflow")
    def workflow(self, run: WorkflowRun) -> SafeString:
        return formatting.two_lines(run.display_name, run.workflow_file)

    @display(description="Commit")
    def commit(self, run: WorkflowRun) -> SafeString:
        return formatting.two_lines(formatting.code(run.head_sha[:12]), run.head_ref)

    @display(description="Event")
    def event_text(self, run: WorkflowRun) -> str:
        return formatting.humanize(run.event) + (" of a fork" if run.from_fork else "")

    # --- buttons ------------------------------------------------------------------------------------------------------

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """Offer what is possible in the state of the run. The operations check the state again."""
        run = self.get_object(request, object_id)
        if run is None:
            return []
        has_ended = state_of_run(run).conclusion is not None
        possible = {"rerun", "rerun-failed", "unpin" if run.pinned else "pin"} if has_ended else {"cancel"}
        if run.hold == RunHold.APPROVAL and not has_ended:
            possible.add("approve")
        return [button for button in super().get_actions_detail(request, object_id) if button.path in possible]

    @action(description="Approve", url_path="approve", permissions=["operate"], icon="check")
    def approve_run(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def approve(run: WorkflowRun, cause: Cause) -> str:
            approval.approve_workflow_run(run_id=run.pk, cause=cause)
            return "Approved"

        description = "The jobs of the run may be claimed. Their scripts were written by the author of a fork."
        return confirm_for_row(
            self, request, object_id, approve, button="Approve", description=description, title=TITLE
        )

    @action(
        description="Cancel", url_path="cancel", permissions=["operate"], icon="block", variant=ActionVariant.DANGER
    )
    def cancel_run(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def cancel(run: WorkflowRun, cause: Cause) -> str:
            outcome = batches.cancel_batch(
                batch_ulid=run.batch.batch_ulid,
                actor=cause.actor,
                deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
                message=cause.reason,
            )
            return "Cancel requested from the runners" if outcome.accepted else "Canceled"

        description = "Waiting jobs are canceled at once. The runners of running jobs are asked to stop them."
        return confirm_for_row(
            self, request, object_id, cancel, button="Cancel", description=description, title=TITLE, danger=True
        )

    @action(description="Rerun", url_path="rerun", permissions=["operate"], icon="replay")
    def rerun_run(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._rerun(request, object_id, "Rerun", RerunScope.ALL, "Starts all jobs again as a new run.")

    @action(description="Rerun failed jobs", url_path="rerun-failed", permissions=["operate"], icon="replay")
    def rerun_failed(self, request: HttpRequest, object_id: str) -> HttpResponse:
        description = (
            "Starts the failed jobs and those that need them as a new run, which takes over the other results."
        )
        return self._rerun(request, object_id, "Rerun failed jobs", RerunScope.FAILED, description)

    @action(description="Pin", url_path="pin", permissions=["operate"], icon="keep")
    def pin(self, request: HttpRequest, object_id: str) -> HttpResponse:
        description = "Retention keeps the run with its logs and artifacts, until it is unpinned."
        return self._pin(request, object_id, "Pin", description, pinned=True)

    @action(description="Unpin", url_path="unpin", permissions=["operate"], icon="keep_off")
    def unpin(self, request: HttpRequest, object_id: str) -> HttpResponse:
        description = "The run and its artifacts are deleted after their retention periods, which continued meanwhile."
        return self._pin(request, object_id, "Unpin", description, pinned=False)

    def _pin(self, request: HttpRequest, object_id: str, label: str, description: str, *, pinned: bool) -> HttpResponse:
        def keep(run: WorkflowRun, cause: Cause) -> str:
            pins.pin_workflow_run(run_id=run.pk, pinned=pinned, cause=cause)
            return f"{label}ned"

        return confirm_for_row(self, request, object_id, keep, button=label, description=description, title=TITLE)

    def _rerun(
        self, request: HttpRequest, object_id: str, label: str, scope: RerunScope, description: str
    ) -> HttpResponse:
        """Ask for a reason and for changes. What is wrong with the changes is shown beside their fields."""
        run = self.existing_row(request, object_id)
        form = RerunForm(request.POST or None, run)
        title, back = TITLE.format(button=label, row=run), formatting.change_url(WorkflowRun, run.pk)
        page = ConfirmPage(title, description, label, back)
        if request.method != "POST" or not form.is_valid():
            return render_confirm(self, request, page, form)
        actor = actor_of(request)
        asked = RerunRequest(
            actor_name=actor.name,
            correlation_id=new_id("req"),
            source_address=client_address(request),
            scope=scope,
            edit=form.edit,
            reason=form.cleaned_data["reason"],
        )
        try:
            new = rerun(run, asked, actor=actor).run
        except Invalid as refusal:
            form.refuse(refusal.errors)
            return render_confirm(self, request, page, form)
        except LifecycleError as refusal:
            messages.warning(request, refusal.message)
            return HttpResponseRedirect(page.back)
        messages.success(request, f"Started as run #{new.run_index}.")
        return HttpResponseRedirect(formatting.change_url(WorkflowRun, new.pk))


@admin.register(RejectedWorkflow)
class RejectedWorkflowAdmin(LargeTableAdmin):
    """Displays the workflow files that an event should have run, and what is wrong in them."""

    list_display = ["file", "repository", "commit", "event", "fault_count", "received"]
    list_display_links = ["file"]
    list_filter = [RepositoryNameFilter, WorkflowFileFilter, HeadShaFilter, WorkflowEventFilter]
    list_select_related = ["repository"]
    ordering = ["-id"]
    fields = ["file", "repository", "commit_hash", "ref", "event", "received", "faults"]
    received = formatting.timestamp_column("created_at", "Received")
    commit_hash = formatting.value_column("head_sha", "Commit")
    ref = formatting.value_column("head_ref", "Ref")

    @display(description="Workflow file")
    def file(self, rejected: RejectedWorkflow) -> SafeString:
        return formatting.code(rejected.workflow_file)

    @display(description="Commit")
    def commit(self, rejected: RejectedWorkflow) -> SafeString:
        return formatting.code(rejected.head_sha[:12])

    @display(description="Diagnostics")
    def fault_count(self, rejected: RejectedWorkflow) -> int:
        return len(rejected.diagnostics)

    @display(description="Diagnostics")
    def faults(self, rejected: RejectedWorkflow) -> SafeString:
        rows = (
            (found["line"], found["severity"], found["path"] or rejected.workflow_file, found["message"])
            for found in rejected.diagnostics
        )
        return format_html_join("", '<div>Line {} · {} · <span class="code">{}</span> {}</div>', rows)
