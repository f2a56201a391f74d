"""Projects: what an organization may run, and where."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from orchestrator.admin import shown
from orchestrator.admin.filters import exactly, one_of
from orchestrator.admin.recording import Recorded
from runtime_jobs.models import Job, Project


@admin.register(Project)
class ProjectAdmin(Recorded):
    noun = "project"
    fixed = ("organization", "slug")
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

    @display(description="Repositories")
    def shown_repositories(self, project: Project) -> str:
        more = len(project.repositories) - 3
        return ", ".join(project.repositories[:3]) + (f" and {more} more" if more > 0 else "")

    @display(description="Jobs")
    def jobs(self, project: Project) -> SafeString:
        address = shown.list_of(Job, org_slug=project.organization.slug, project_slug=project.slug)
        return shown.link(address, "jobs")
