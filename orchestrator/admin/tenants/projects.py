"""Projects: what an organization may run, and where; what its webhook runs, and the secret that it signs with."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.decorators import action, display

from leases.models import LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.base import actor_of
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from orchestrator.admin.filters import exactly, one_of
from orchestrator.admin.limits.pause import PausableAdmin
from orchestrator.admin.tokens.show_once import render_token_once
from orchestrator.http.client_ip import client_address
from orchestrator.models import WebhookDelivery
from runtime_jobs import validators
from runtime_jobs.models import Job, Project
from workers.models import Pool


class ProjectForm(forms.ModelForm):
    """Refuses a pool that does not exist and a command that no job could have, while the operator still sees it: not
    only when jobs wait for nobody, or in a delivery's answer."""

    def clean_pool(self) -> str:
        slug: str = self.cleaned_data["pool"]
        if slug and not Pool.objects.filter(slug=slug).exists():
            raise forms.ValidationError("There is no such pool.")
        return slug

    def clean_configured_command(self) -> list[str]:
        command: list[str] = self.cleaned_data["configured_command"]
        if command and (wrong := validators.validate_command(command)):
            raise forms.ValidationError(wrong)
        return command

    def clean_configured_directory(self) -> str:
        directory: str = self.cleaned_data["configured_directory"]
        if wrong := validators.validate_directory(directory):
            raise forms.ValidationError(wrong)
        return directory

    def clean(self) -> dict[str, Any]:
        asked: dict[str, Any] = super().clean() or self.cleaned_data
        organization = asked.get("organization") or getattr(self.instance, "organization", None)
        seconds, limit = asked.get("configured_timeout_seconds"), organization and organization.plan.max_timeout_seconds
        if seconds and limit and seconds > limit:
            self.add_error("configured_timeout_seconds", f"The organization's plan allows at most {limit} seconds.")
        return asked


@admin.register(Project)
class ProjectAdmin(PausableAdmin, AuditedAdmin):
    noun = "project"
    fixed = ("organization", "slug")
    form = ProjectForm
    list_display = ["__str__", "enabled", "shown_repositories", "pool", "least_isolation", "jobs"]
    list_filter = [
        exactly("organization__slug", "organization"),
        one_of("enabled", "enabled", [("True", "Yes"), ("False", "No")]),
        exactly("pool", "pool"),
    ]
    list_select_related = ["organization"]
    autocomplete_fields = ["organization"]
    search_fields = ["slug__startswith", "organization__slug__startswith"]
    search_help_text = "the beginning of its slug or of its organization's"
    ordering = ["organization__slug", "slug"]
    readonly_fields = ["webhook", "held"]
    fieldsets = [
        (None, {"fields": ["organization", "slug", "enabled", "repositories", "pool", "least_isolation", "held"]}),
        (
            "What a webhook runs",
            {
                "fields": [
                    *("configured_command", "configured_directory", "configured_timeout_seconds"),
                    *("configured_network", "push_enabled", "webhook"),
                ]
            },
        ),
    ]
    actions_detail = ["pause", "resume", "throttle", "rotate"]

    def subject_of(self, row: Project) -> LimitTarget:
        return LimitTarget(LimitScope.PROJECT, row.organization.slug, row.slug)

    def has_rotate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.change_project")

    @action(description="New webhook secret", url_path="webhook-secret", permissions=["rotate"], icon="key")
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        project = self.get_object(request, object_id)
        if project is None:
            raise Http404
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            found, secret = services.rotate_webhook_secret(
                project_id=project.pk,
                actor=actor_of(request),
                reason=form.cleaned_data["reason"],
                source_address=client_address(request),
            )
            return render_token_once(self, request, found, secret, noun="Webhook secret")
        lead = "The next page shows it, once, to be copied to GitHub. What is signed with an older one counts no more."
        back = formatting.change_url(Project, project.pk)
        return render_confirm(
            self, request, ConfirmPage(f"New webhook secret of {project}", lead, "Make it", back), form
        )

    @display(description="Webhook")
    def webhook(self, project: Project | None) -> SafeString | str:
        address = f"{settings.PUBLIC_URL}{reverse('github-webhook')}"
        if project is None or not project.webhook_generation:
            return f"{address}, no secret yet"
        came = formatting.changelist_url(WebhookDelivery, org_slug=project.organization.slug)
        return formatting.link(came, f"{address}, secret no. {project.webhook_generation}")

    @display(description="Repositories")
    def shown_repositories(self, project: Project) -> str:
        more = len(project.repositories) - 3
        return ", ".join(project.repositories[:3]) + (f" and {more} more" if more > 0 else "")

    @display(description="Jobs")
    def jobs(self, project: Project) -> SafeString:
        address = formatting.changelist_url(Job, org_slug=project.organization.slug, project_slug=project.slug)
        return formatting.link(address, "jobs")
