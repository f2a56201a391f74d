"""Organizations: the tenants. A slug never changes and is never free again."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from leases.limits import Subject
from orchestrator.admin import shown
from orchestrator.admin.filters import exactly, one_of
from orchestrator.admin.holding import Held
from orchestrator.admin.limit_verb import LimitVerb
from orchestrator.admin.recording import Recorded
from runtime_jobs.models import Job, Organization, Project


@admin.register(Organization)
class OrganizationAdmin(Held, LimitVerb, Recorded):
    noun = "organization"
    fixed = ("slug",)
    list_display = ["slug", "name", "plan", "hosted_runtime_analysis", "projects", "jobs"]
    list_filter = [
        exactly("plan__name", "plan"),
        one_of("hosted_runtime_analysis", "hosted analysis", [("True", "On"), ("False", "Off")]),
    ]
    list_select_related = ["plan"]
    autocomplete_fields = ["plan"]
    search_fields = ["slug__startswith", "name__istartswith"]
    search_help_text = "the beginning of its slug or name"
    ordering = ["slug"]
    readonly_fields = ["limits", "held"]
    actions_detail = ["limit", "pause", "resume", "throttle"]

    def subject_of(self, row: Organization) -> Subject:
        return Subject.of_organization(row.slug)

    @display(description="Projects")
    def projects(self, organization: Organization) -> SafeString:
        return shown.link(shown.list_of(Project, organization__slug=organization.slug), "projects")

    @display(description="Jobs")
    def jobs(self, organization: Organization) -> SafeString:
        return shown.link(shown.list_of(Job, org_slug=organization.slug), "jobs")
