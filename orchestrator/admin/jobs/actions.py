"""Actions on jobs: cancel, retry, replay, re-upload, revoke, prioritize. Each job is changed in its own transaction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import BadRequest
from django.db import Error
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldBooleanSwitchWidget

from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, render_confirm
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.labels import JobBadge, job_badge
from orchestrator.evidence import replays
from orchestrator.evidence.replays import ReplayRequest
from orchestrator.services import cancellation, retries, worker_state
from orchestrator.services.priority import prioritize
from runtime_jobs.errors import LifecycleError
from runtime_jobs.events import Actor
from runtime_jobs.identifiers import is_id
from runtime_jobs.models import Job, UnsentRun
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import CancelReason, JobState

MAX_JOBS = 100  # per request: two pages of the list
MAX_SINGLE_MESSAGES = 5


class PriorityForm(ReasonForm):
    """Asks for a reason and for the new priority by name."""

    priority = forms.ChoiceField(
        choices=[(name, f"{name} ({number})") for name, number in PRIORITIES.items()],
        initial="normal",
        widget=UnfoldAdminSelectWidget,
    )
    field_order = ("priority", "reason")


class ReplayForm(ReasonForm):
    """Asks for a reason, and whether the replay must be able to prove something."""

    sealed = forms.BooleanField(
        required=False,
        initial=True,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Refuse the replay if the job had access to the network or used something else that is not fixed.",
    )
    field_order = ("sealed", "reason")


@dataclass(frozen=True)
class JobAction:
    """A button of a job's page and of the list.

    Attributes:
        name: Name in the address.
        label: Label of the button.
        description: Consequences, displayed on the confirmation page.
        operation: Runs the operation on one job with the values of the form. Returns the success message; raises
            LifecycleError if the operation is refused.
        danger: Displays the button in red.
        form: Form of the confirmation page.
        preposition: Text between the label and the job's id in the title.
    """

    name: str
    label: str
    description: str
    operation: Callable[..., str]
    danger: bool = False
    form: type[ReasonForm] = ReasonForm
    preposition: str = " "


def _cancel(job_ulid: str, actor: Actor, reason: str) -> str:
    outcome = cancellation.cancel(
        job_ulid=job_ulid,
        actor=actor,
        deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
        reason=CancelReason.OPERATOR,
        message=reason,
    )
    return "cancel requested from the worker" if outcome.accepted else "canceled"


def _retry(job_ulid: str, actor: Actor, reason: str) -> str:
    return f"retried as {retries.retry(job_ulid=job_ulid, actor=actor, reason=reason).job.job_ulid}"


def _reupload(job_ulid: str, actor: Actor, reason: str) -> str:
    return f"re-upload queued as {retries.reupload(job_ulid=job_ulid, actor=actor, reason=reason).job.job_ulid}"


def _prioritize(job_ulid: str, actor: Actor, reason: str, priority: str) -> str:
    job = prioritize(job_ulid=job_ulid, priority=PRIORITIES[priority], actor=actor, reason=reason)
    if job is None:
        raise LifecycleError(f"The job is not queued, or its priority is already {priority}. Nothing was changed.")
    return f"priority changed to {priority}"


def _replay(job_ulid: str, actor: Actor, reason: str, sealed: bool) -> str:
    root = Job.objects.filter(job_ulid=job_ulid).values_list("root_job_ulid", flat=True).first()
    request = ReplayRequest(root or job_ulid, reason, actor, is_sealed=sealed)
    return f"replayed as {replays.replay(request).job.job_ulid}"


def _revoke(job_ulid: str, actor: Actor, reason: str) -> str:
    job = worker_state.revoke(job_ulid=job_ulid, actor=actor, reason=reason)
    if job is None:
        raise LifecycleError("The job has no open lease. Nothing was revoked.")
    return f"lease revoked; the job is now {formatting.humanize(job.state)}"


CANCEL = JobAction(
    "cancel",
    "Cancel",
    "A queued job is canceled at once. The worker of a running job is asked to stop it.",
    _cancel,
    danger=True,
)
RETRY = JobAction("retry", "Retry", "Queues a new attempt with the same command on the same commit.", _retry)
REUPLOAD = JobAction(
    "reupload",
    "Re-upload results",
    "Queues a new attempt that uploads the stored results. The command is not executed again.",
    _reupload,
)
REVOKE = JobAction(
    "revoke",
    "Revoke lease",
    "The worker can no longer report on the job. A started job fails with worker_lost, and is retried if its retry "
    "policy allows. A job that was not started is queued again.",
    _revoke,
    danger=True,
)
PRIORITIZE = JobAction(
    "prioritize",
    "Change priority",
    "Places a queued job by its age among the jobs of the new priority. Running jobs are unaffected.",
    _prioritize,
    form=PriorityForm,
    preposition=" of ",
)
REPLAY = JobAction(
    "replay",
    "Replay",
    "Queues a job that repeats this one with the same input. When it has ended, the outputs of both are compared.",
    _replay,
    form=ReplayForm,
)
ACTIONS = {job_action.name: job_action for job_action in (CANCEL, RETRY, REUPLOAD, REVOKE, PRIORITIZE, REPLAY)}


def available_actions(job: Job | None) -> set[str]:
    """Return the names of the actions that can apply to the job in its current state."""
    if job is None:
        return set()
    job_type, possible = JOB_TYPES[job.job_type], _actions_by_state(job)
    if not job_type.is_retryable:
        possible = possible - {RETRY.name}
    return possible if job_type.manifest else possible - {REPLAY.name}


def _actions_by_state(job: Job) -> set[str]:
    if job.is_final:
        was_retried = Job.objects.filter(retry_of_job_ulid=job.job_ulid).exists()
        if was_retried:
            return set()
        if job.state == JobState.SUCCEEDED:
            return {REPLAY.name}
        again = {RETRY.name, REPLAY.name}
        return again | {REUPLOAD.name} if UnsentRun.objects.filter(job=job).exists() else again
    if job.is_held:
        return {CANCEL.name, REVOKE.name}
    if job.state == JobState.PROCESSING:
        return set()
    return {CANCEL.name, RETRY.name} if job.state == JobState.LOST else {CANCEL.name, PRIORITIZE.name}


def confirm_and_run(
    model_admin: BaseAdmin, request: HttpRequest, job_action: JobAction, job_ulids: list[str]
) -> HttpResponse:
    """Render the confirmation page on GET, run the action on POST. The caller has checked the permission."""
    if not 1 <= len(job_ulids) <= MAX_JOBS or not all(is_id(job_ulid, "rtj") for job_ulid in job_ulids):
        raise BadRequest(f"`job` must name 1 to {MAX_JOBS} jobs by their ids.")
    form = job_action.form(request.POST or None)
    if request.method == "POST" and form.is_valid():
        results = [_run(job_action, job_ulid, actor_of(request), form.cleaned_data) for job_ulid in job_ulids]
        _add_messages(request, job_action, results)
        return HttpResponseRedirect(_back(request, job_ulids))
    page = ConfirmPage(
        title=f"{job_action.label}{job_action.preposition}{_count(job_ulids)}",
        description=job_action.description,
        button=job_action.label,
        back=_back(request, job_ulids),
        danger=job_action.danger,
    )
    return render_confirm(model_admin, request, page, form, jobs=_selected_jobs(job_ulids))


@dataclass(frozen=True)
class JobActionResult:
    """Outcome of an action on one job, with its message."""

    job_ulid: str
    succeeded: bool
    message: str


def _run(job_action: JobAction, job_ulid: str, actor: Actor, values: dict[str, Any]) -> JobActionResult:
    try:
        message = job_action.operation(job_ulid, actor, **values)
        return JobActionResult(job_ulid, succeeded=True, message=f"{message}.")
    except LifecycleError as refusal:
        return JobActionResult(job_ulid, succeeded=False, message=refusal.message)
    except Error:
        message = "The database is busy. Nothing was changed; try again."
        return JobActionResult(job_ulid, succeeded=False, message=message)


def _add_messages(request: HttpRequest, job_action: JobAction, results: list[JobActionResult]) -> None:
    succeeded = [result for result in results if result.succeeded]
    if len(succeeded) > MAX_SINGLE_MESSAGES:
        messages.success(request, f"{job_action.label}: done for {len(succeeded)} jobs.")
    else:
        for result in succeeded:
            messages.success(request, f"{result.job_ulid}: {result.message}")
    for result in results:
        if not result.succeeded:
            messages.warning(request, f"{result.job_ulid}: {result.message}")


def _back(request: HttpRequest, job_ulids: list[str]) -> str:
    if len(job_ulids) == 1:
        return formatting.change_url(Job, job_ulids[0])
    filters = request.GET.get("_changelist_filters", "")
    return reverse("admin:runtime_jobs_job_changelist") + (f"?{filters}" if filters else "")


def _count(job_ulids: list[str]) -> str:
    return job_ulids[0] if len(job_ulids) == 1 else f"{len(job_ulids)} jobs"


@dataclass(frozen=True)
class SelectedJob:
    """A row of the confirmation page."""

    job_ulid: str
    badge: JobBadge
    tenant: str
    repository: str


def _selected_jobs(job_ulids: list[str]) -> list[SelectedJob]:
    jobs = Job.objects.filter(job_ulid__in=job_ulids).order_by("-id").defer("spec", "result", "progress")
    return [
        SelectedJob(job.job_ulid, job_badge(job), f"{job.org_slug}/{job.project_slug}", formatting.repository_of(job))
        for job in jobs
    ]
