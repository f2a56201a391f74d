"""The buttons Pause, Resume and Throttle of whatever has jobs: organizations, projects, pools."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from leases.models import Limit, LimitKind, LimitScope
from leases.models.limits import TEMPORARY_KINDS
from leases.scheduling.limits import LimitTarget
from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from orchestrator.admin.limits import labels
from orchestrator.http.client_ip import client_address
from runtime_jobs.errors import Invalid, LifecycleError

OPERATE = "runtime_jobs.operate_job"
CHANGE_POOLS = "workers.change_pool"
SET_LIMITS = "runtime_jobs.change_organization"


class TemporaryForm(ReasonForm):
    """A reason, and when it shall end by itself."""

    until = forms.DateTimeField(
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local"}),
        help_text="In UTC. Empty: until somebody ends it.",
    )
    field_order: Any = ("until", "reason")


class ThrottleForm(TemporaryForm):
    """How many may start in an hour."""

    per_hour = forms.IntegerField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        label="Starts per hour",
        help_text="Empty: the throttle ends.",
        widget=UnfoldAdminIntegerFieldWidget,
    )
    burst = forms.IntegerField(
        min_value=1,
        max_value=10_000,
        initial=1,
        label="At once",
        help_text="So many may start at once after a calm time.",
        widget=UnfoldAdminIntegerFieldWidget,
    )
    field_order = ("per_hour", "burst", "until", "reason")


@dataclass(frozen=True)
class PauseAction:
    """What the button's page says and asks for, and the verb that it ends in."""

    title: str
    lead: str
    act: Callable[..., Any]
    form: type[ReasonForm]


PAUSE = PauseAction(
    "Pause",
    "None of its jobs starts any more. What runs, runs on; nothing is refused. A second pause replaces the first.",
    services.pause,
    TemporaryForm,
)
RESUME = PauseAction("Resume", "Its jobs may start again, as far as limits let them.", services.resume, ReasonForm)
THROTTLE = PauseAction(
    "Throttle",
    "Only so many of its jobs start in an hour, besides its other limits. The others wait.",
    services.throttle,
    ThrottleForm,
)


def asked_by(request: HttpRequest, form: forms.Form) -> dict[str, Any]:
    """Who, why and from where, as the verbs of operators take it."""
    return {
        "actor": actor_of(request),
        "reason": form.cleaned_data["reason"],
        "source_address": client_address(request),
    }


def permission_for(limit: Limit) -> str:
    """What one needs to set or lift such a limit."""
    if limit.scope in {LimitScope.POOL, LimitScope.JOB_TYPE}:
        return CHANGE_POOLS
    return OPERATE if limit.kind in TEMPORARY_KINDS else SET_LIMITS


class PausableAdmin(BaseAdmin):
    """Mixed into the page of a noun whose jobs can be held. `hold_permission`: what its buttons need."""

    hold_permission = OPERATE

    def subject_of(self, row: Any) -> LimitTarget:
        raise NotImplementedError

    def has_hold_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(self.hold_permission)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Resume only where something is paused."""
        row = self.get_object(request, object_id)
        is_paused = row is not None and self.subject_of(row).limit(LimitKind.PAUSE) is not None
        buttons = super().get_actions_detail(request, object_id)
        return [button for button in buttons if is_paused or button.path != "resume"]

    @display(description="Held back")
    def held(self, row: Any) -> str:
        limits = [] if row is None or row.pk is None else held_of(self.subject_of(row))
        return "; ".join(sentence(limit) for limit in limits) or "no"

    @action(description="Pause", url_path="pause", permissions=["hold"], icon="pause")
    def pause(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _ask(self, request, object_id, PAUSE)

    @action(description="Resume", url_path="resume", permissions=["hold"], icon="play_arrow")
    def resume(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _ask(self, request, object_id, RESUME)

    @action(description="Throttle", url_path="throttle", permissions=["hold"], icon="hourglass")
    def throttle(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return _ask(self, request, object_id, THROTTLE)


def held_of(subject: LimitTarget) -> list[Limit]:
    return list(Limit.objects.filter(kind__in=TEMPORARY_KINDS, **subject.columns).order_by("kind"))


def sentence(limit: Limit) -> str:
    """`paused by olga until 20:00 UTC (in 12 min): new disks`."""
    what = "paused" if limit.kind == LimitKind.PAUSE else f"throttled to {labels.allows(limit)}"
    until = ""
    if limit.until:
        until = f" until {limit.until:%Y-%m-%d %H:%M} UTC ({formatting.time_until(limit.until, timezone.now())})"
    return f"{what} by {labels.set_by(limit)}{until}: {limit.note}"


def _ask(page: PausableAdmin, request: HttpRequest, object_id: str, verb: PauseAction) -> HttpResponse:
    row = page.get_object(request, object_id)
    if row is None:
        raise Http404
    form, back = verb.form(request.POST or None), formatting.change_url(type(row), row.pk)
    if request.method == "POST" and form.is_valid() and _done(page, request, row, verb, form):
        return HttpResponseRedirect(back)
    return render_confirm(page, request, ConfirmPage(f"{verb.title} {row}", verb.lead, verb.title, back), form)


def _done(page: PausableAdmin, request: HttpRequest, row: Any, verb: PauseAction, form: ReasonForm) -> bool:
    """Whether there is no more to ask."""
    asked = {name: value for name, value in form.cleaned_data.items() if name != "reason"}
    try:
        verb.act(subject=page.subject_of(row), **asked, **asked_by(request, form))
    except Invalid as refusal:
        for name, texts in refusal.errors.items():
            form.add_error(name, texts)
        return False
    except LifecycleError as refusal:
        messages.warning(request, f"{row}: {refusal.message}")
    else:
        held = "; ".join(sentence(limit) for limit in held_of(page.subject_of(row)))
        messages.success(request, f"{row}: {held or 'not held back any more'}.")
    return True
