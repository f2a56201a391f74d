"""Organizations: the tenants. A slug never changes and is never free again."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from leases.scheduling.limits import LimitTarget
from leases.scheduling.submit_quotas import room_of, waiting_jobs
from orchestrator.admin import formatting
from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.filters import exactly, one_of
from orchestrator.admin.limits.actions import LimitAction
from orchestrator.admin.limits.pause import PausableAdmin
from runtime_jobs.models import Job, Organization, Project


@admin.register(Organization)
class OrganizationAdmin(PausableAdmin, LimitAction, AuditedAdmin):
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
    readonly_fields = ["limits", "submit_quota", "held"]
    actions_detail = ["limit", "pause", "resume", "throttle"]

    def subject_of(self, row: Organization) -> LimitTarget:
        return LimitTarget.of_organization(row.slug)

    @display(description="Submit quota")
    def submit_quota(self, organization: Organization) -> str:
        """`42 of 10000 queued jobs; 6000 submits a minute, burst 2000`."""
        if organization.pk is None:
            return "-"
        room = room_of(organization)
        queued, terms, refusal = waiting_jobs(organization.slug), room.terms, room.refusal()
        limit = "" if terms.max_queued is None else f" of {terms.max_queued}"
        rate = "any rate" if terms.per_minute is None else f"{terms.per_minute} submits a minute, burst {terms.burst}"
        return f"{queued}{limit} queued jobs; {rate}" + (f"; submits are refused: {refusal.code}" if refusal else "")

    @display(description="Projects")
    def projects(self, organization: Organization) -> SafeString:
        return formatting.link(formatting.changelist_url(Project, organization__slug=organization.slug), "projects")

    @display(description="Jobs")
    def jobs(self, organization: Organization) -> SafeString:
        return formatting.link(formatting.changelist_url(Job, org_slug=organization.slug), "jobs")
