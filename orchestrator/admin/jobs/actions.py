"""Cancel, retry, resend, revoke: with a reason, each job in its own transaction, each refusal said."""

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
from unfold.widgets import UnfoldAdminSelectWidget

from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from runtime_jobs.errors import LifecycleError
from runtime_jobs.events import Actor
from runtime_jobs.identifiers import is_id
from runtime_jobs.models import Job, UnsentRun
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.states import CancelReason, JobState

LIMIT = 100  # jobs at a time: a page of the list, twice
SAID_ONE_BY_ONE = 5


class PriorityForm(ReasonForm):
    """A reason, and the new priority by its name."""

    priority = forms.ChoiceField(
        choices=[(name, f"{name} ({number})") for name, number in PRIORITIES.items()],
        initial="normal",
        widget=UnfoldAdminSelectWidget,
    )
    field_order = ("priority", "reason")


@dataclass(frozen=True)
class JobAction:
    """`act` does it to one job, with what `form` asks for, and says what came of it; where it is refused it raises
    LifecycleError."""

    name: str
    title: str
    lead: str
    act: Callable[..., str]
    danger: bool = False
    form: type[ReasonForm] = ReasonForm
    joint: str = " "  # between the title and the job's id


def _cancel(job_ulid: str, actor: Actor, reason: str) -> str:
    outcome = services.cancel(
        job_ulid=job_ulid,
        actor=actor,
        deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
        reason=CancelReason.OPERATOR,
        message=reason,
    )
    return "its worker has been told to stop" if outcome.accepted else "canceled"


def _retry(job_ulid: str, actor: Actor, reason: str) -> str:
    return f"queued again as {services.retry(job_ulid=job_ulid, actor=actor, reason=reason).job.job_ulid}"


def _resend(job_ulid: str, actor: Actor, reason: str) -> str:
    return f"its run goes out again as {services.reupload(job_ulid=job_ulid, actor=actor, reason=reason).job.job_ulid}"


def _prioritize(job_ulid: str, actor: Actor, reason: str, priority: str) -> str:
    job = services.prioritize(job_ulid=job_ulid, priority=PRIORITIES[priority], actor=actor, reason=reason)
    if job is None:
        raise LifecycleError(f"It waits no more, or with priority {priority} already.")
    return f"waits with priority {priority}"


def _revoke(job_ulid: str, actor: Actor, reason: str) -> str:
    job = services.revoke(job_ulid=job_ulid, actor=actor, reason=reason)
    if job is None:
        raise LifecycleError("No worker holds it; there is nothing to take away.")
    return f"taken from its worker, now {job.public_status}"


CANCEL = JobAction(
    "cancel",
    "Cancel",
    "A job that waits ends at once; the worker of one that runs is told to stop.",
    _cancel,
    danger=True,
)
RETRY = JobAction("retry", "Retry", "A new attempt is queued, with the same command on the same commit.", _retry)
RESEND = JobAction(
    "resend",
    "Resend run",
    "The run that could not be handed over is uploaded by a new attempt; nothing is executed again.",
    _resend,
)
REVOKE = JobAction(
    "revoke",
    "Revoke lease",
    "The worker may no longer speak for the job: what runs fails as worker_lost (with an automatic retry if its policy "
    "has one left), what was not taken up waits again.",
    _revoke,
    danger=True,
)
PRIORITIZE = JobAction(
    "prioritize",
    "Change priority",
    "A waiting job waits with another priority, at the place that its age gives it there. What runs, runs on.",
    _prioritize,
    form=PriorityForm,
    joint=" of ",
)
ACTIONS = {verb.name: verb for verb in (CANCEL, RETRY, RESEND, REVOKE, PRIORITIZE)}


def available_actions(job: Job | None) -> set[str]:
    """The names of the verbs that may do something to the job as it is now."""
    if job is None:
        return set()
    if job.is_final:
        followed = Job.objects.filter(retry_of_job_ulid=job.job_ulid).exists()
        if followed or job.state == JobState.SUCCEEDED:
            return set()
        return {RETRY.name, RESEND.name} if UnsentRun.objects.filter(job=job).exists() else {RETRY.name}
    if job.is_held:
        return {CANCEL.name, REVOKE.name}
    return {CANCEL.name, PRIORITIZE.name}


def confirm_and_run(
    model_admin: BaseAdmin, request: HttpRequest, verb: JobAction, job_ulids: list[str]
) -> HttpResponse:
    """GET asks why, POST does it. The caller has checked the permission."""
    if not 1 <= len(job_ulids) <= LIMIT or not all(is_id(job_ulid, "rtj") for job_ulid in job_ulids):
        raise BadRequest(f"Name 1 to {LIMIT} jobs.")
    form = verb.form(request.POST or None)
    if request.method == "POST" and form.is_valid():
        said = {name: _do(verb, name, actor_of(request), form.cleaned_data) for name in job_ulids}
        _say(request, verb, said)
        return HttpResponseRedirect(_next(request, job_ulids))
    question = ConfirmPage(
        title=f"{verb.title}{verb.joint}{_count(job_ulids)}",
        lead=verb.lead,
        button=verb.title,
        back=_next(request, job_ulids),
        danger=verb.danger,
    )
    return render_confirm(model_admin, request, question, form, jobs=_listed(job_ulids))


def _do(verb: JobAction, job_ulid: str, actor: Actor, asked: dict[str, Any]) -> tuple[bool, str]:
    """Whether it was done, and what there is to say."""
    try:
        return True, verb.act(job_ulid, actor, **asked)
    except LifecycleError as refusal:
        return False, refusal.message
    except Error:
        return False, "The database was busy; nothing has changed. Try again."


def _say(request: HttpRequest, verb: JobAction, said: dict[str, tuple[bool, str]]) -> None:
    done = {name: words for name, (well, words) in said.items() if well}
    if len(done) > SAID_ONE_BY_ONE:
        messages.success(request, f"{verb.title}: done for {len(done)} jobs.")
    else:
        for name, words in done.items():
            messages.success(request, f"{name}: {words}.")
    for name, (well, words) in said.items():
        if not well:
            messages.warning(request, f"{name}: {words}")


def _next(request: HttpRequest, job_ulids: list[str]) -> str:
    if len(job_ulids) == 1:
        return formatting.change_url(Job, job_ulids[0])
    filters = request.GET.get("_changelist_filters", "")
    return reverse("admin:runtime_jobs_job_changelist") + (f"?{filters}" if filters else "")


def _count(job_ulids: list[str]) -> str:
    return job_ulids[0] if len(job_ulids) == 1 else f"{len(job_ulids)} jobs"


def _listed(job_ulids: list[str]) -> list[dict[str, Any]]:
    columns = ("job_ulid", "state", "org_slug", "project_slug", "repo_owner", "repo_name")
    return list(Job.objects.filter(job_ulid__in=job_ulids).order_by("-id").values(*columns))
