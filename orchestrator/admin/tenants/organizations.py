"""Organizations: the tenants. A slug never changes and is never reused."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from leases.scheduling.limits import LimitTarget
from leases.scheduling.submit_quotas import remaining_quota, waiting_jobs
from orchestrator.admin import formatting
from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.filters import YES_NO, choice_filter, exact_filter
from orchestrator.admin.limits.incident_mode import IncidentModeMixin
from orchestrator.admin.limits.organization_limits import OrganizationLimitMixin
from orchestrator.admin.limits.pause import PausableAdmin
from runtime_jobs.models import Job, Organization, Project


@admin.register(Organization)
class OrganizationAdmin(PausableAdmin, OrganizationLimitMixin, IncidentModeMixin, AuditedAdmin):
    """Edits organizations, sets their limits, pauses and throttles them, begins and ends their incident mode."""

    audit_name = "organization"
    immutable_fields = ("slug",)
    list_display = ["slug", "name", "plan", "hosted_runtime_analysis", "projects", "jobs"]
    list_filter = [
        exact_filter("plan", "plan__name"),
        choice_filter("hosted runtime analysis", "hosted_runtime_analysis", YES_NO),
    ]
    list_select_related = ["plan"]
    autocomplete_fields = ["plan", "default_project"]
    search_fields = ["slug__startswith", "name__istartswith"]
    search_help_text = "Slug or name (prefix)"
    ordering = ["slug"]
    readonly_fields = ["limits", "submit_quota", "restrictions", "incident_mode"]
    actions_detail = ["limit", "pause", "resume", "throttle", "begin_incident_mode", "end_incident_mode"]

    def org_slug_of(self, row: Organization) -> str:
        return row.slug

    def limit_target(self, row: Organization) -> LimitTarget:
        return LimitTarget.of_organization(row.slug)

    @display(description="Submit quota")
    def submit_quota(self, organization: Organization) -> str:
        """Describe the quota and its use: `42 of 10,000 queued jobs; 6,000 submits per minute, burst 2,000`."""
        if organization.pk is None:
            return formatting.NO_VALUE
        quota = remaining_quota(organization)
        queued, terms, refusal = waiting_jobs(organization.slug), quota.terms, quota.refusal()
        limit = "" if terms.max_queued is None else f" of {terms.max_queued:,}"
        rate = "unlimited submit rate"
        if terms.per_minute is not None:
            rate = f"{terms.per_minute:,} submits per minute, burst {terms.burst:,}"
        refused = f"; submits are currently refused: {refusal.code}" if refusal else ""
        return f"{queued:,}{limit} queued jobs; {rate}{refused}"

    @display(description="Projects")
    def projects(self, organization: Organization) -> SafeString:
        return formatting.link(formatting.changelist_url(Project, organization__slug=organization.slug), "Projects")

    @display(description="Jobs")
    def jobs(self, organization: Organization) -> SafeString:
        return formatting.link(formatting.changelist_url(Job, org_slug=organization.slug), "Jobs")
