"""The buttons that begin and end the incident mode of an organization, and its display."""

from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminTextInputWidget

from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, confirm_and_act
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.labels import stored_actor_label
from orchestrator.admin.limits.pause import OPERATE
from orchestrator.incidents import incident_mode as incident_mode_operations
from orchestrator.incidents.models import IncidentMode
from runtime_jobs.models import Organization

BEGIN = (
    "Until its end retention deletes nothing of this organization, and its notifications are sent one by one. "
    "If the mode has begun, this changes its end."
)


class IncidentModeForm(ReasonForm):
    """Asks for the end of the mode."""

    until = forms.DateTimeField(
        label="Until",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local"}),
        help_text="In UTC, at most 31 days from now.",
    )
    field_order = ("until", "reason")


def describe_mode(mode: IncidentMode) -> str:
    """Describe an active mode: `until 2026-01-01 20:00 UTC (in 12 min), begun by operator olga: investigation`."""
    until = f"until {mode.until:%Y-%m-%d %H:%M} UTC ({formatting.time_until(mode.until, timezone.now())})"
    return f"{until}, begun by {stored_actor_label(mode.begun_by)}: {mode.reason}"


class IncidentModeMixin(BaseAdmin):
    """Adds the buttons and the display of the mode to the page of organizations."""

    def has_incident_mode_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(OPERATE)

    @display(description="Incident mode")
    def incident_mode(self, organization: Organization | None) -> str:
        if organization is None or organization.pk is None:
            return "no"
        mode = IncidentMode.objects.filter(org_slug=organization.slug, until__gt=timezone.now()).first()
        return describe_mode(mode) if mode else "no"

    @action(
        description="Begin incident mode",
        url_path="begin-incident-mode",
        permissions=["incident_mode"],
        icon="emergency_home",
    )
    def begin_incident_mode(self, request: HttpRequest, object_id: str) -> HttpResponse:
        organization = self._organization(request, object_id)
        form = IncidentModeForm(request.POST or None)
        title = f"Begin incident mode of {organization.slug}"
        page = ConfirmPage(title, BEGIN, "Begin", formatting.change_url(Organization, organization.pk))

        def act() -> str:
            until = form.cleaned_data["until"]
            mode = incident_mode_operations.begin_incident_mode(
                org_slug=organization.slug, until=until, cause=cause_of(request, form)
            )
            return f"{organization.slug} is in incident mode {describe_mode(mode)}"

        return confirm_and_act(self, request, page, form, act)

    @action(
        description="End incident mode",
        url_path="end-incident-mode",
        permissions=["incident_mode"],
        icon="check_circle",
    )
    def end_incident_mode(self, request: HttpRequest, object_id: str) -> HttpResponse:
        organization = self._organization(request, object_id)
        form = ReasonForm(request.POST or None)
        page = ConfirmPage(
            f"End incident mode of {organization.slug}",
            "Retention deletes old rows again.",
            "End",
            formatting.change_url(Organization, organization.pk),
        )

        def act() -> str:
            incident_mode_operations.end_incident_mode(org_slug=organization.slug, cause=cause_of(request, form))
            return f"{organization.slug} is no longer in incident mode"

        return confirm_and_act(self, request, page, form, act)

    def _organization(self, request: HttpRequest, object_id: str) -> Organization:
        organization: Any = self.get_object(request, object_id)
        if organization is None:
            raise Http404
        found: Organization = organization
        return found
