"""The buttons of a worker's page: activate, drain, maintenance, rotate token, revoke. Each asks for a reason."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, cause_of, render_confirm
from orchestrator.admin.forms import NoteForm, ReasonForm
from orchestrator.admin.token_pages import render_token_once
from orchestrator.services import worker_state
from runtime_jobs.errors import LifecycleError
from workers.models import Worker
from workers.registry.models import WorkerState


@dataclass(frozen=True)
class WorkerAction:
    """A button that changes the state of a worker.

    Attributes:
        state: New state.
        label: Label of the button.
        description: Consequences, displayed on the confirmation page.
        message: Success message, after the worker's name.
        form: Form of the confirmation page.
        danger: Displays the button in red.
    """

    state: WorkerState
    label: str
    description: str
    message: str
    form: type[ReasonForm] = ReasonForm
    danger: bool = False


ACTIVATE = WorkerAction(WorkerState.ACTIVE, "Activate", "The worker can claim jobs again.", "activated")
DRAIN = WorkerAction(
    WorkerState.DRAINING, "Drain", "The worker finishes its running jobs and gets no new ones.", "draining"
)
MAINTENANCE = WorkerAction(
    WorkerState.MAINTENANCE,
    "Maintenance",
    "Drains the worker, and shows a note beside it.",
    "in maintenance",
    form=NoteForm,
)
REVOKE = WorkerAction(
    WorkerState.REVOKED,
    "Revoke",
    "Revokes the worker's token and its open leases at once. A revoked worker cannot be restored.",
    "revoked",
    danger=True,
)
BUTTONS = {
    WorkerState.ACTIVE: {"drain", "maintenance", "rotate", "revoke"},
    WorkerState.DRAINING: {"activate", "maintenance", "rotate", "revoke"},
    WorkerState.MAINTENANCE: {"activate", "drain", "maintenance", "rotate", "revoke"},
    WorkerState.ARCHIVED: {"revoke"},
    WorkerState.REVOKED: set(),
}


class WorkerActionsMixin(BaseAdmin):
    """Adds the buttons to the page of workers."""

    actions_detail = ["activate", "drain", "maintenance", "rotate", "revoke"]

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("workers.change_worker")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        worker = self.get_object(request, object_id)
        available = BUTTONS[worker.state] if worker else set()
        if worker and worker.is_runner:
            available = available - {"rotate"}  # its key is rotated on the page of runners
        return [button for button in super().get_actions_detail(request, object_id) if button.path in available]

    @action(description="Activate", url_path="activate", permissions=["operate"], icon="play_arrow")
    def activate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _change_state(self, request, object_id, ACTIVATE)

    @action(description="Drain", url_path="drain", permissions=["operate"], icon="filter_alt")
    def drain(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _change_state(self, request, object_id, DRAIN)

    @action(description="Maintenance", url_path="maintenance", permissions=["operate"], icon="build")
    def maintenance(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _change_state(self, request, object_id, MAINTENANCE)

    @action(
        description="Revoke", url_path="revoke", permissions=["operate"], icon="block", variant=ActionVariant.DANGER
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _change_state(self, request, object_id, REVOKE)

    @action(description="Rotate token", url_path="rotate", permissions=["operate"], icon="key")
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        worker = self.existing_row(request, object_id)
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                token = worker_state.rotate_worker_token(worker_id=worker.worker_id, cause=cause_of(request, form))
            except LifecycleError as refusal:
                return _refuse(request, worker, refusal)
            return render_token_once(self, request, worker, token)
        description = "Creates a new token and shows it once. The current token is refused at once."
        page = ConfirmPage(f"Rotate token of {worker.slug}", description, "Rotate token", _url(worker))
        return render_confirm(self, request, page, form)


def _change_state(model_admin: Any, request: HttpRequest, object_id: str, worker_action: WorkerAction) -> HttpResponse:
    worker = model_admin.existing_row(request, object_id)
    form = worker_action.form(request.POST or None)
    if request.method != "POST" or not form.is_valid():
        page = ConfirmPage(
            f"{worker_action.label} {worker.slug}",
            worker_action.description,
            worker_action.label,
            _url(worker),
            danger=worker_action.danger,
        )
        return render_confirm(model_admin, request, page, form)
    try:
        worker_state.set_worker_state(
            worker_id=worker.worker_id,
            state=worker_action.state,
            note=form.cleaned_data.get("note", ""),
            cause=cause_of(request, form),
        )
    except LifecycleError as refusal:
        return _refuse(request, worker, refusal)
    message = f"{worker.slug}: {worker_action.message}"
    if worker_action is REVOKE:
        message += f", {formatting.pluralize(_revoke_leases(request, worker, form), 'lease')} revoked"
    messages.success(request, f"{message}.")
    return HttpResponseRedirect(_url(worker))


def _revoke_leases(request: HttpRequest, worker: Worker, form: ReasonForm) -> int:
    reason = f"worker revoked: {form.cleaned_data['reason']}"
    return worker_state.revoke_leases_of(worker_id=worker.worker_id, actor=actor_of(request), reason=reason)


def _refuse(request: HttpRequest, worker: Worker, refusal: LifecycleError) -> HttpResponse:
    messages.warning(request, f"{worker.slug}: {refusal.message}")
    return HttpResponseRedirect(_url(worker))


def _url(worker: Worker) -> str:
    return formatting.change_url(Worker, worker.pk)
