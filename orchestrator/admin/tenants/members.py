"""Members: users who may view the runs and jobs of an organization in the browser."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.confirm import cause_of
from orchestrator.admin.filters import RelatedOrganizationFilter, exact_filter
from orchestrator.core.operator_events import record_operator_event
from runtime_jobs.models import Membership


@admin.register(Membership)
class MembershipAdmin(AuditedAdmin):
    """Adds and removes members, and changes their roles."""

    audit_name = "membership"
    immutable_fields = ("user", "organization")
    list_display = ["user", "organization", "role"]
    list_display_links = ["user"]
    list_filter = [RelatedOrganizationFilter, exact_filter("user", "user__username")]
    list_select_related = ["user", "organization"]
    autocomplete_fields = ["user", "organization"]
    search_fields = ["user__username__startswith", "organization__slug__startswith"]
    search_help_text = "User name or organization (prefix)"
    ordering = ["organization__slug", "user__username"]
    actions = None  # no bulk deletion: each removal writes its own event

    def target_of(self, row: Membership) -> str:
        return f"membership:{row.organization.slug}/{row.user.get_username()}"

    def org_slug_of(self, row: Membership) -> str:
        return row.organization.slug

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        return request.user.has_perm("runtime_jobs.delete_membership")

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        """Write the event in the transaction of Django's delete view."""
        record_operator_event(
            "membership.ended",
            target=self.target_of(obj)[:200],
            cause=cause_of(request),
            org_slug=self.org_slug_of(obj),
        )
        super().delete_model(request, obj)
