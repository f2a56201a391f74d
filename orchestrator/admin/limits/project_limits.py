"""The button Set limit of a project, and the display of its limit."""

from django import forms
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from leases.models import Limit, LimitKind
from leases.scheduling.limits import LimitTarget
from orchestrator.admin.base import BaseAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.limits import labels
from orchestrator.admin.limits.pause import SET_LIMITS
from orchestrator.core.cause import Cause
from orchestrator.limits.job_limits import LimitTerms, set_limit
from runtime_jobs.models import Project

DESCRIPTION = (
    "Jobs of this project above the limit stay queued; no submit is refused. Running jobs continue when the limit is "
    "lowered. Emergency jobs count, and are not stopped by it. Leave the number empty to remove the limit."
)
NO_LIMIT = "none"


class ProjectLimitForm(ReasonForm):
    """Asks for the number of running jobs."""

    max_active = forms.IntegerField(
        required=False, label="Max concurrency", min_value=0, max_value=10_000, widget=UnfoldAdminIntegerFieldWidget
    )
    field_order = ("max_active", "reason")


class ProjectLimitMixin(BaseAdmin):
    """Adds the button and the display of the limit to the page of projects."""

    def has_set_limit_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(SET_LIMITS)

    @display(description="Max concurrency")
    def concurrency(self, project: Project | None) -> str:
        return NO_LIMIT if project is None or project.pk is None else _description(project)

    @action(description="Set limit", url_path="limit", permissions=["set_limit"], icon="speed")
    def limit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        form = ProjectLimitForm(request.POST or None)

        def act(project: Project, cause: Cause) -> str:
            set_limit(LimitKind.PROJECT, _target(project), LimitTerms(form.cleaned_data["max_active"]), cause=cause)
            return f"Max concurrency of {project}: {_description(project)}"

        title = "Set limit of {row}"
        return confirm_for_row(
            self, request, object_id, act, button="Set limit", description=DESCRIPTION, title=title, form=form
        )


def _target(project: Project) -> LimitTarget:
    return LimitTarget.of_project(project.organization.slug, project.slug)


def _description(project: Project) -> str:
    """Describe the limit of a project: `2 of 20` jobs run, or `none`."""
    limit = Limit.objects.counted().filter(kind=LimitKind.PROJECT, **_target(project).columns).first()
    return labels.usage_of(limit) if limit else NO_LIMIT
