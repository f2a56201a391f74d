"""The buttons that begin and end the incident mode of an organization, and its display."""

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminTextInputWidget

from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.labels import stored_actor_label
from orchestrator.admin.limits.pause import OPERATE
from orchestrator.core.cause import Cause
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
        form = IncidentModeForm(request.POST or None)

        def act(organization: Organization, cause: Cause) -> str:
            until, slug = form.cleaned_data["until"], organization.slug
            mode = incident_mode_operations.begin_incident_mode(org_slug=slug, until=until, cause=cause)
            return f"{slug} is in incident mode {describe_mode(mode)}"

        title = "Begin incident mode of {row.slug}"
        return confirm_for_row(self, request, object_id, act, button="Begin", description=BEGIN, title=title, form=form)

    @action(
        description="End incident mode",
        url_path="end-incident-mode",
        permissions=["incident_mode"],
        icon="check_circle",
    )
    def end_incident_mode(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def act(organization: Organization, cause: Cause) -> str:
            incident_mode_operations.end_incident_mode(org_slug=organization.slug, cause=cause)
            return f"{organization.slug} is no longer in incident mode"

        text, title = "Retention deletes old rows again.", "End incident mode of {row.slug}"
        return confirm_for_row(self, request, object_id, act, button="End", description=text, title=title)
