"""The button that limits how many jobs of an organization run at once, and what its page says of its limits."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget

from leases.limits import ALL_TYPES
from leases.models import Limit, LimitSlot
from leases.models.limits import LimitKind
from orchestrator import lifecycle
from orchestrator.access.addresses import address_of
from orchestrator.admin import shown
from orchestrator.admin.asking import Question, Reason, ask
from orchestrator.admin.console import Console, actor_of
from runtime_jobs.models import Organization
from runtime_jobs.specs import TYPES

LEAD = "Jobs above it wait; nothing is refused. What runs above a lowered limit runs on. Empty: no limit."


class NewLimit(Reason):
    """Which jobs, and how many of them at once."""

    job_type = forms.ChoiceField(widget=UnfoldAdminSelectWidget, label="Jobs of type")
    max_active = forms.IntegerField(
        min_value=0, max_value=10_000, required=False, widget=UnfoldAdminIntegerFieldWidget, label="At most"
    )
    field_order = ("job_type", "max_active", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(ALL_TYPES, "all types together"), *((name, name) for name in sorted(TYPES))]
        self.fields["job_type"].choices = choices  # type: ignore[attr-defined]


class LimitVerb(Console):
    """Mixed into the page of organizations."""

    actions_detail = ["limit"]

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.change_organization")

    @display(description="Running jobs")
    def limits(self, organization: Organization) -> str:
        return "; ".join(_sentences(organization)) or "no limit"

    @action(description="Limit", url_path="limit", permissions=["operate"], icon="speed")
    def limit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        organization = self.get_object(request, object_id)
        if organization is None:
            raise Http404
        back = shown.page_of(Organization, organization.pk)
        form = NewLimit(request.POST or None)
        if request.method != "POST" or not form.is_valid():
            return ask(self, request, Question(f"Limit {organization.slug}", LEAD, "Set limit", back), form)
        _set(request, organization, form)
        return HttpResponseRedirect(back)


def _set(request: HttpRequest, organization: Organization, form: NewLimit) -> None:
    lifecycle.set_limit(
        org_slug=organization.slug,
        **form.cleaned_data,
        by=actor_of(request),
        source_address=address_of(request),
    )
    messages.success(request, f"{organization.slug}: {'; '.join(_sentences(organization)) or 'no limit'}.")


def _sentences(organization: Organization) -> list[str]:
    limits = Limit.objects.filter(kind=LimitKind.ORGANIZATION, org_slug=organization.slug).order_by("key")
    return [f"{_what(limit)}: {_running(limit)} of {limit.max_active}" for limit in limits]


def _what(limit: Limit) -> str:
    return "all types" if limit.key == ALL_TYPES else limit.key


def _running(limit: Limit) -> int:
    return LimitSlot.objects.filter(limit_id=limit.pk, job_id__isnull=False).count()
