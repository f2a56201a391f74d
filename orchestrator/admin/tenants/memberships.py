"""Memberships: who may look at an organization's jobs in the browser."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.base import actor_of
from orchestrator.admin.filters import exactly
from orchestrator.http.client_ip import client_address
from orchestrator.services.operator_actions import record_operator_event
from runtime_jobs.models import Membership


@admin.register(Membership)
class MembershipAdmin(AuditedAdmin):
    noun = "membership"
    list_display = ["user", "organization"]
    list_display_links = ["user"]
    list_filter = [exactly("organization__slug", "organization"), exactly("user__username", "person")]
    list_select_related = ["user", "organization"]
    autocomplete_fields = ["user", "organization"]
    search_fields = ["user__username__startswith", "organization__slug__startswith"]
    ordering = ["organization__slug", "user__username"]
    actions = None  # one at a time, each with its event

    def target_of(self, row: Membership) -> str:
        return f"membership:{row.organization.slug}/{row.user.get_username()}"

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Nothing in it can change: it is there or not."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 as above
        return request.user.has_perm("runtime_jobs.delete_membership")

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        """In Django's transaction of the delete view."""
        record_operator_event(
            "membership.ended",
            target=self.target_of(obj)[:200],
            actor=actor_of(request),
            source_address=client_address(request),
        )
        super().delete_model(request, obj)
