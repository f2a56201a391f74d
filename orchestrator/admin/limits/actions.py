"""The button that limits an organization, and what its page says of its limits."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget

from leases.models import Limit, LimitKind, LimitScope
from leases.models.limits import TEMPORARY_KINDS
from leases.scheduling.limits import ALL_TYPES
from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from orchestrator.admin.limits import labels
from orchestrator.admin.limits.pause import SET_LIMITS, asked_by
from runtime_jobs.models import Organization
from runtime_jobs.specs import JOB_TYPES

LEAD = (
    "Jobs above a limit wait; nothing is refused. What runs above a lowered limit runs on. Without a number: no limit."
)
KINDS = [
    (str(LimitKind.ORGANIZATION), "so many jobs at once"),
    (str(LimitKind.RATE), "so many starts an hour"),
    (str(LimitKind.EMERGENCY), "so many emergencies at once, which skip the queue"),
]


def _number(label: str, **kwargs: Any) -> forms.IntegerField:
    return forms.IntegerField(required=False, label=label, widget=UnfoldAdminIntegerFieldWidget, **kwargs)


class NewLimitForm(ReasonForm):
    """Which jobs, and how many of them."""

    kind = forms.ChoiceField(
        choices=KINDS, required=False, initial=LimitKind.ORGANIZATION, widget=UnfoldAdminSelectWidget, label="Limit"
    )
    job_type = forms.ChoiceField(widget=UnfoldAdminSelectWidget, label="Jobs of type")
    max_active = _number("At once", min_value=0, max_value=10_000)
    per_hour = _number("Starts an hour", min_value=1, max_value=1_000_000, help_text="Only for starts an hour.")
    burst = _number(
        "Burst", min_value=1, max_value=10_000, help_text="So many may start at once after a calm time; else 1."
    )
    field_order = ("kind", "job_type", "max_active", "per_hour", "burst", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(ALL_TYPES, "all types together"), *((name, name) for name in sorted(JOB_TYPES))]
        self.fields["job_type"].choices = choices  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        asked: dict[str, Any] = super().clean() or self.cleaned_data
        asked["kind"] = LimitKind(asked.get("kind") or LimitKind.ORGANIZATION)
        is_rate = asked["kind"] == LimitKind.RATE
        for name in ("max_active",) if is_rate else ("per_hour", "burst"):
            if asked.get(name) is not None:
                self.add_error(name, "Not with this limit.")
        if asked["kind"] == LimitKind.EMERGENCY and asked.get("job_type") != ALL_TYPES:
            self.add_error("job_type", "Emergencies are limited for all types together.")
        return asked


class LimitAction(BaseAdmin):
    """Mixed into the page of organizations."""

    actions_detail = ["limit"]

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(SET_LIMITS)

    @display(description="Limits")
    def limits(self, organization: Organization) -> str:
        return "; ".join(_sentences(organization)) or "no limit"

    @action(description="Limit", url_path="limit", permissions=["operate"], icon="speed")
    def limit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        organization = self.get_object(request, object_id)
        if organization is None:
            raise Http404
        back = formatting.change_url(Organization, organization.pk)
        form = NewLimitForm(request.POST or None)
        if request.method != "POST" or not form.is_valid():
            return render_confirm(
                self, request, ConfirmPage(f"Limit {organization.slug}", LEAD, "Set limit", back), form
            )
        _set(request, organization, form)
        return HttpResponseRedirect(back)


def _set(request: HttpRequest, organization: Organization, form: NewLimitForm) -> None:
    asked = form.cleaned_data
    common = {"org_slug": organization.slug, "job_type": asked["job_type"], **asked_by(request, form)}
    if asked["kind"] == LimitKind.RATE:
        services.set_rate(per_hour=asked["per_hour"], burst=asked["burst"] or 1, **common)
    else:
        services.set_limit(kind=asked["kind"], max_active=asked["max_active"], **common)
    messages.success(request, f"{organization.slug}: {'; '.join(_sentences(organization)) or 'no limit'}.")


def _sentences(organization: Organization) -> list[str]:
    limits = Limit.objects.counted().filter(scope=LimitScope.ORGANIZATION, org_slug=organization.slug)
    return [_sentence(limit) for limit in limits.exclude(kind__in=TEMPORARY_KINDS).order_by("kind", "key")]


def _sentence(limit: Limit) -> str:
    """`all types: 0 of 3`, `steps, rate: 60 an hour, 5 at once`."""
    what = "all types" if limit.key == ALL_TYPES else limit.key
    kind = "" if limit.kind == LimitKind.ORGANIZATION else f", {labels.KINDS[limit.kind]}"
    return f"{what}{kind}: {labels.used(limit) if limit.per_hour is None else labels.allows(limit)}"
