"""Projects: repositories, pool and isolation; the default command of webhooks, and the webhook secret."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.decorators import action, display

from leases.scheduling.limits import LimitTarget
from orchestrator.admin import formatting
from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, render_confirm
from orchestrator.admin.filters import YES_NO, PoolSlugFilter, RelatedOrganizationFilter, choice_filter
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.limits.pause import PausableAdmin
from orchestrator.admin.limits.project_limits import ProjectLimitMixin
from orchestrator.admin.token_pages import render_token_once
from orchestrator.protocols.github.models import WebhookDelivery
from orchestrator.services import credentials
from runtime_jobs import validators
from runtime_jobs.models import Job, Project
from workers.models import Pool

MAX_LISTED_REPOSITORIES = 3


class ProjectForm(forms.ModelForm):
    """Refuses a pool that does not exist and a command that no job accepts, before a webhook creates a job."""

    def clean_pool(self) -> str:
        slug: str = self.cleaned_data["pool"]
        if slug and not Pool.objects.filter(slug=slug).exists():
            raise forms.ValidationError(f"There is no pool {slug}. Enter the slug of a pool, or leave the field empty.")
        return slug

    def clean_configured_command(self) -> list[str]:
        command: list[str] = self.cleaned_data["configured_command"]
        if command and (error := validators.validate_command(command)):
            raise forms.ValidationError(error)
        return command

    def clean_configured_directory(self) -> str:
        directory: str = self.cleaned_data["configured_directory"]
        if error := validators.validate_directory(directory):
            raise forms.ValidationError(error)
        return directory

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        organization = values.get("organization") or getattr(self.instance, "organization", None)
        seconds = values.get("configured_timeout_seconds")
        limit = organization and organization.plan.max_timeout_seconds
        if seconds and limit and seconds > limit:
            self.add_error("configured_timeout_seconds", f"The organization's plan allows at most {limit} seconds.")
        return values


@admin.register(Project)
class ProjectAdmin(ProjectLimitMixin, PausableAdmin, AuditedAdmin):
    """Edits projects, rotates their webhook secret, limits, pauses and throttles them."""

    audit_name = "project"
    immutable_fields = ("organization", "slug")
    form = ProjectForm
    list_display = ["__str__", "enabled", "repository_list", "pool", "least_isolation", "jobs"]
    list_filter = [RelatedOrganizationFilter, choice_filter("enabled", "enabled", YES_NO), PoolSlugFilter]
    list_select_related = ["organization"]
    autocomplete_fields = ["organization"]
    search_fields = ["slug__startswith", "organization__slug__startswith"]
    search_help_text = "Slug of the project or organization (prefix)"
    ordering = ["organization__slug", "slug"]
    readonly_fields = ["webhook", "restrictions", "concurrency", "uuid", "public_slug"]
    fieldsets = [
        (
            None,
            {
                "fields": [
                    *("organization", "slug", "enabled", "repositories", "pool", "least_isolation"),
                    *("trace", "concurrency", "restrictions"),
                ]
            },
        ),
        ("Bencher API", {"fields": ["visibility", "uuid", "public_slug"]}),
        (
            "Webhook",
            {
                "fields": [
                    *("configured_command", "configured_directory", "configured_timeout_seconds"),
                    *("configured_network", "push_enabled", "webhook"),
                ]
            },
        ),
    ]
    actions_detail = ["limit", "pause", "resume", "throttle", "rotate_secret"]

    def org_slug_of(self, row: Project) -> str:
        return row.organization.slug

    def limit_target(self, row: Project) -> LimitTarget:
        return LimitTarget.of_project(row.organization.slug, row.slug)

    def has_rotate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.change_project")

    @action(description="Rotate webhook secret", url_path="webhook-secret", permissions=["rotate"], icon="key")
    def rotate_secret(self, request: HttpRequest, object_id: str) -> HttpResponse:
        project = self.existing_row(request, object_id)
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            row, secret = credentials.rotate_webhook_secret(project_id=project.pk, cause=cause_of(request, form))
            return render_token_once(self, request, row, secret, label="Webhook secret")
        description = (
            "Creates a new secret and shows it once, for the webhook settings of GitHub. "
            "Deliveries that are signed with the current secret are refused from then on."
        )
        page = ConfirmPage(
            f"Rotate webhook secret of {project}",
            description,
            "Rotate secret",
            formatting.change_url(Project, project.pk),
        )
        return render_confirm(self, request, page, form)

    @display(description="Webhook URL")
    def webhook(self, project: Project | None) -> SafeString | str:
        address = f"{settings.PUBLIC_URL}{reverse('github-webhook')}"
        if project is None or not project.webhook_generation:
            return f"{address} (no secret yet)"
        deliveries = formatting.changelist_url(WebhookDelivery, org_slug=project.organization.slug)
        return formatting.link(deliveries, f"{address} (secret generation {project.webhook_generation})")

    @display(description="Repositories")
    def repository_list(self, project: Project) -> str:
        more = len(project.repositories) - MAX_LISTED_REPOSITORIES
        names = ", ".join(project.repositories[:MAX_LISTED_REPOSITORIES])
        return names + (f" and {more} more" if more > 0 else "")

    @display(description="Jobs")
    def jobs(self, project: Project) -> SafeString:
        address = formatting.changelist_url(Job, org_slug=project.organization.slug, project_slug=project.slug)
        return formatting.link(address, "Jobs")
