"""The button Set limit of an organization, and the display of its limits."""

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget

from leases.models import Limit, LimitKind, LimitScope
from leases.models.limits import TEMPORARY_KINDS
from leases.scheduling.limits import ALL_TYPES, LimitTarget
from orchestrator.admin.base import BaseAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.limits import labels
from orchestrator.admin.limits.pause import SET_LIMITS
from orchestrator.core.cause import Cause
from orchestrator.limits.job_limits import LimitTerms, set_limit
from runtime_jobs.models import Organization
from runtime_jobs.specs import JOB_TYPES

DESCRIPTION = (
    "Jobs above a limit stay queued; no submit is refused. Running jobs continue when a limit is lowered. "
    "Leave the number empty to remove the limit."
)
KINDS = [
    (str(LimitKind.ORGANIZATION), "Concurrency: running jobs"),
    (str(LimitKind.RATE), "Rate: starts per hour"),
    (str(LimitKind.EMERGENCY), "Emergency concurrency: running jobs that bypass the queue"),
]


def _number(label: str, **kwargs: Any) -> forms.IntegerField:
    return forms.IntegerField(required=False, label=label, widget=UnfoldAdminIntegerFieldWidget, **kwargs)


class OrganizationLimitForm(ReasonForm):
    """Asks for the kind of limit, the job type and the numbers."""

    kind = forms.ChoiceField(
        choices=KINDS, required=False, initial=LimitKind.ORGANIZATION, widget=UnfoldAdminSelectWidget, label="Limit"
    )
    job_type = forms.ChoiceField(widget=UnfoldAdminSelectWidget, label="Job type")
    max_active = _number("Max concurrency", min_value=0, max_value=10_000, help_text="Not for a rate.")
    per_hour = _number("Starts per hour", min_value=1, max_value=1_000_000, help_text="Only for a rate.")
    burst = _number(
        "Burst", min_value=1, max_value=10_000, help_text="Only for a rate. Starts without delay. Default 1."
    )
    field_order = ("kind", "job_type", "max_active", "per_hour", "burst", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(ALL_TYPES, "All types together"), *((name, name) for name in sorted(JOB_TYPES))]
        self.fields["job_type"].choices = choices  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        values["kind"] = LimitKind(values.get("kind") or LimitKind.ORGANIZATION)
        is_rate = values["kind"] == LimitKind.RATE
        for name in ("max_active",) if is_rate else ("per_hour", "burst"):
            if values.get(name) is not None:
                self.add_error(name, f"Not applicable to this limit ({labels.KINDS[values['kind']]}). Leave it empty.")
        if values["kind"] == LimitKind.EMERGENCY and values.get("job_type") != ALL_TYPES:
            self.add_error("job_type", "The emergency limit applies to all types together. Choose all types.")
        return values


class OrganizationLimitMixin(BaseAdmin):
    """Adds the button and the display of limits to the page of organizations."""

    actions_detail = ["limit"]

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(SET_LIMITS)

    @display(description="Limits")
    def limits(self, organization: Organization) -> str:
        return "; ".join(_descriptions(organization)) or "none"

    @action(description="Set limit", url_path="limit", permissions=["operate"], icon="speed")
    def limit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        form = OrganizationLimitForm(request.POST or None)

        def act(organization: Organization, cause: Cause) -> str:
            values = form.cleaned_data
            target = LimitTarget.of_organization(organization.slug, values["job_type"])
            terms = LimitTerms(values["max_active"], values["per_hour"], values["burst"] or 1)
            set_limit(values["kind"], target, terms, cause=cause)
            return f"Limits of {organization.slug}: {self.limits(organization)}"

        title = "Set limit of {row.slug}"
        return confirm_for_row(
            self, request, object_id, act, button="Set limit", description=DESCRIPTION, title=title, form=form
        )


def _descriptions(organization: Organization) -> list[str]:
    limits = Limit.objects.counted().filter(scope=LimitScope.ORGANIZATION, org_slug=organization.slug)
    return [_description(limit) for limit in limits.exclude(kind__in=TEMPORARY_KINDS).order_by("kind", "key")]


def _description(limit: Limit) -> str:
    """Describe a limit: `all types: 0 of 3`, `steps, rate: 60 per hour, burst 5`."""
    types = "all types" if limit.key == ALL_TYPES else limit.key
    kind = "" if limit.kind == LimitKind.ORGANIZATION else f", {labels.KINDS[limit.kind].lower()}"
    return f"{types}{kind}: {labels.usage_of(limit) if limit.per_hour is None else labels.value_of(limit)}"
