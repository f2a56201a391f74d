"""The buttons on a worker's page. Each asks why first; revoking takes back what the worker holds."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action
from unfold.enums import ActionVariant

from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, NoteForm, ReasonForm, render_confirm
from orchestrator.admin.tokens.show_once import render_token_once
from orchestrator.http.client_ip import client_address
from runtime_jobs.errors import LifecycleError
from workers.models import Worker
from workers.registry.models import WorkerState


@dataclass(frozen=True)
class WorkerChange:
    """Into which state, and what the page says about it."""

    state: WorkerState
    title: str
    lead: str
    form: type[ReasonForm] = ReasonForm
    danger: bool = False


ACTIVATE = WorkerChange(WorkerState.ACTIVE, "Activate", "It may claim again.")
DRAIN = WorkerChange(WorkerState.DRAINING, "Drain", "It finishes what it holds and gets nothing new.")
MAINTENANCE = WorkerChange(
    WorkerState.MAINTENANCE,
    "Maintenance",
    "As drain, with a note that everybody sees beside the worker.",
    form=NoteForm,
)
REVOKE = WorkerChange(
    WorkerState.REVOKED,
    "Revoke",
    "For good: its token no longer counts, and what it holds is taken back at once.",
    danger=True,
)
BUTTONS = {
    WorkerState.ACTIVE: {"drain", "maintenance", "rotate", "revoke"},
    WorkerState.DRAINING: {"activate", "maintenance", "rotate", "revoke"},
    WorkerState.MAINTENANCE: {"activate", "drain", "maintenance", "rotate", "revoke"},
    WorkerState.REVOKED: set(),
}


class WorkerActions(BaseAdmin):
    """Mixed into the page of workers."""

    actions_detail = ["activate", "drain", "maintenance", "rotate", "revoke"]

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("workers.change_worker")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        worker = self.get_object(request, object_id)
        fitting = BUTTONS[worker.state] if worker else set()
        return [button for button in super().get_actions_detail(request, object_id) if button.path in fitting]

    @action(description="Activate", url_path="activate", permissions=["operate"], icon="play_arrow")
    def activate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _change(self, request, object_id, ACTIVATE)

    @action(description="Drain", url_path="drain", permissions=["operate"], icon="filter_alt")
    def drain(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _change(self, request, object_id, DRAIN)

    @action(description="Maintenance", url_path="maintenance", permissions=["operate"], icon="build")
    def maintenance(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _change(self, request, object_id, MAINTENANCE)

    @action(
        description="Revoke", url_path="revoke", permissions=["operate"], icon="block", variant=ActionVariant.DANGER
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _change(self, request, object_id, REVOKE)

    @action(description="Rotate token", url_path="rotate", permissions=["operate"], icon="key")
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        worker = _found(self, request, object_id)
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                token = services.rotate_worker_token(worker_id=worker.worker_id, **_by(request, form))
            except LifecycleError as refusal:
                return _refused(request, worker, refusal)
            return render_token_once(self, request, worker, token)
        lead = "It gets a new token, which the next page shows, once. The old one stops counting at once."
        return render_confirm(self, request, _question(worker, "Rotate the token of", lead, "Rotate token"), form)


def _change(model_admin: Any, request: HttpRequest, object_id: str, change: WorkerChange) -> HttpResponse:
    worker = _found(model_admin, request, object_id)
    form = change.form(request.POST or None)
    if request.method != "POST" or not form.is_valid():
        question = _question(worker, change.title, change.lead, change.title, danger=change.danger)
        return render_confirm(model_admin, request, question, form)
    try:
        note = form.cleaned_data.get("note", "")
        services.set_worker_state(worker_id=worker.worker_id, state=change.state, note=note, **_by(request, form))
    except LifecycleError as refusal:
        return _refused(request, worker, refusal)
    messages.success(
        request, f"{worker.slug} is {change.state.label.lower()}{_taken_back(request, worker, change, form)}."
    )
    return HttpResponseRedirect(_page(worker))


def _taken_back(request: HttpRequest, worker: Worker, change: WorkerChange, form: ReasonForm) -> str:
    if change.state != WorkerState.REVOKED:
        return ""
    reason = f"its worker was revoked: {form.cleaned_data['reason']}"
    count = services.revoke_leases_of(worker_id=worker.worker_id, actor=actor_of(request), reason=reason)
    return f"; {count} lease{'s' * (count != 1)} taken back"


def _refused(request: HttpRequest, worker: Worker, refusal: LifecycleError) -> HttpResponse:
    messages.warning(request, f"{worker.slug}: {refusal.message}")
    return HttpResponseRedirect(_page(worker))


def _by(request: HttpRequest, form: ReasonForm) -> dict[str, Any]:
    return {
        "actor": actor_of(request),
        "reason": form.cleaned_data["reason"],
        "source_address": client_address(request),
    }


def _question(worker: Worker, title: str, lead: str, button: str, *, danger: bool = False) -> ConfirmPage:
    return ConfirmPage(f"{title} {worker.slug}", lead, button, _page(worker), danger=danger)


def _found(model_admin: Any, request: HttpRequest, object_id: str) -> Worker:
    worker = model_admin.get_object(request, object_id)
    if worker is None:
        raise Http404
    return worker


def _page(worker: Worker) -> str:
    return formatting.change_url(Worker, worker.pk)
