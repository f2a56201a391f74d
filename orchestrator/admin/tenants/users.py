"""Users and groups of the admin. Changes write operator events, as on other pages."""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.confirm import cause_of
from orchestrator.admin.filters import YES_NO, choice_filter
from orchestrator.core.operator_events import record_operator_event

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, AuditedAdmin):
    """Edits users. No event contains a password."""

    audit_name = "user"
    redacted_fields = ("password", "password1", "password2")
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ["username", "email", "is_staff", "is_superuser", "is_active", "last_login"]
    list_filter = [
        choice_filter("staff", "is_staff", YES_NO),
        choice_filter("superuser", "is_superuser", YES_NO),
        choice_filter("active", "is_active", YES_NO),
    ]
    search_fields = ["username__istartswith", "email__istartswith"]
    search_help_text = "User name or email address (prefix)"
    filter_horizontal = []
    autocomplete_fields = ["groups"]
    readonly_fields = ["last_login", "date_joined"]

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002 Django's signature
        """Change the password and write the event in one transaction. Django calls `log_change` after a change only."""
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def log_change(self, request: HttpRequest, obj: User, message: Any) -> Any:  # noqa: ARG002 Django's signature
        if request.resolver_match and request.resolver_match.url_name == "auth_user_password_change":
            record_operator_event(
                "user.password_changed",
                target=self.target_of(obj)[:200],
                cause=cause_of(request),
            )


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, AuditedAdmin):
    """Edits groups of permissions."""

    audit_name = "group"
    search_fields = ["name"]
