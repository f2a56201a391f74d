"""The buttons Pause, Resume and Throttle of organizations, projects and pools."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from leases.models import Limit, LimitKind, LimitScope
from leases.models.limits import TEMPORARY_KINDS
from leases.scheduling.limits import LimitTarget
from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, render_confirm
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.limits.labels import describe_temporary
from orchestrator.limits.job_limits import LimitTerms, set_limit
from runtime_jobs.errors import Invalid, LifecycleError

OPERATE = "runtime_jobs.operate_job"
CHANGE_POOLS = "workers.change_pool"
SET_LIMITS = "runtime_jobs.change_organization"


class TemporaryForm(ReasonForm):
    """Asks for a reason and an expiry."""

    until = forms.DateTimeField(
        label="Expires",
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local"}),
        help_text="In UTC. Empty: until an operator removes it.",
    )
    field_order: Any = ("until", "reason")


class ThrottleForm(TemporaryForm):
    """Asks for a rate of starts."""

    per_hour = forms.IntegerField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        label="Starts per hour",
        help_text="Empty: remove the throttle.",
        widget=UnfoldAdminIntegerFieldWidget,
    )
    burst = forms.IntegerField(
        min_value=1,
        max_value=10_000,
        initial=1,
        label="Burst",
        help_text="Starts without delay while the rate is unused.",
        widget=UnfoldAdminIntegerFieldWidget,
    )
    field_order = ("per_hour", "burst", "until", "reason")


@dataclass(frozen=True)
class PauseAction:
    """A button: its label, the description on its page, its form, and the limit that it sets.

    Attributes:
        max_active: The term that the form does not ask for.
    """

    label: str
    description: str
    form: type[ReasonForm]
    kind: LimitKind
    max_active: int | None = None


PAUSE = PauseAction(
    "Pause",
    "No more jobs start. Running jobs continue, and submits are accepted. A new pause replaces the current one.",
    TemporaryForm,
    LimitKind.PAUSE,
    max_active=0,
)
RESUME = PauseAction("Resume", "Jobs can start again, as far as other limits allow.", ReasonForm, LimitKind.PAUSE)
THROTTLE = PauseAction(
    "Throttle",
    "Limits how many jobs start per hour, in addition to other limits. Further jobs stay queued.",
    ThrottleForm,
    LimitKind.THROTTLE,
)


def permission_for(limit: Limit) -> str:
    """Return the permission that is needed to set or remove such a limit."""
    if limit.scope in {LimitScope.POOL, LimitScope.JOB_TYPE}:
        return CHANGE_POOLS
    return OPERATE if limit.kind in TEMPORARY_KINDS else SET_LIMITS


class PausableAdmin(BaseAdmin):
    """Adds the buttons to the page of a resource. `pause_permission` is the permission that they need."""

    pause_permission = OPERATE

    def limit_target(self, row: Any) -> LimitTarget:
        """Return the scope of the row's limits."""
        raise NotImplementedError

    def has_pause_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(self.pause_permission)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer Resume only while the resource is paused."""
        row = self.get_object(request, object_id)
        is_paused = row is not None and self.limit_target(row).limit(LimitKind.PAUSE) is not None
        buttons = super().get_actions_detail(request, object_id)
        return [button for button in buttons if is_paused or button.path != "resume"]

    @display(description="Paused / throttled")
    def restrictions(self, row: Any) -> str:
        limits = [] if row is None or row.pk is None else _temporary_limits(self.limit_target(row))
        return "; ".join(describe_temporary(limit) for limit in limits) or "no"

    @action(description="Pause", url_path="pause", permissions=["pause"], icon="pause")
    def pause(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _confirm(self, request, object_id, PAUSE)

    @action(description="Resume", url_path="resume", permissions=["pause"], icon="play_arrow")
    def resume(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _confirm(self, request, object_id, RESUME)

    @action(description="Throttle", url_path="throttle", permissions=["pause"], icon="hourglass")
    def throttle(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _confirm(self, request, object_id, THROTTLE)


def _temporary_limits(target: LimitTarget) -> list[Limit]:
    return list(Limit.objects.filter(kind__in=TEMPORARY_KINDS, **target.columns).order_by("kind"))


def _confirm(
    model_admin: PausableAdmin, request: HttpRequest, object_id: str, pause_action: PauseAction
) -> HttpResponse:
    row = model_admin.existing_row(request, object_id)
    form, back = pause_action.form(request.POST or None), formatting.change_url(type(row), row.pk)
    if request.method == "POST" and form.is_valid() and _run(model_admin, request, row, pause_action, form):
        return HttpResponseRedirect(back)
    page = ConfirmPage(f"{pause_action.label} {row}", pause_action.description, pause_action.label, back)
    return render_confirm(model_admin, request, page, form)


def _run(
    model_admin: PausableAdmin, request: HttpRequest, row: Any, pause_action: PauseAction, form: ReasonForm
) -> bool:
    """Call the operation. Return False if the form is to be shown again, with the errors of its fields."""
    values = {name: value for name, value in form.cleaned_data.items() if name != "reason"}
    terms = LimitTerms(max_active=pause_action.max_active, **values)
    target = model_admin.limit_target(row)
    try:
        set_limit(pause_action.kind, target, terms, cause=cause_of(request, form))
    except Invalid as refusal:
        for name, texts in refusal.errors.items():
            form.add_error(name, texts)
        return False
    except LifecycleError as refusal:
        messages.warning(request, f"{row}: {refusal.message}")
    else:
        active = "; ".join(describe_temporary(limit) for limit in _temporary_limits(target))
        messages.success(request, f"{row}: {active or 'not paused or throttled'}.")
    return True
