"""People who may come in, and the groups that say what they may do. Changes leave operator events as others do."""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from orchestrator.admin.audited import AuditedAdmin
from orchestrator.admin.base import actor_of
from orchestrator.admin.filters import one_of
from orchestrator.http.client_ip import client_address
from orchestrator.services.operator_actions import record_operator_event

admin.site.unregister(User)
admin.site.unregister(Group)
YES_NO = [("True", "Yes"), ("False", "No")]


@admin.register(User)
class UserAdmin(DjangoUserAdmin, AuditedAdmin):
    noun = "user"
    unseen = ("password", "password1", "password2")
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ["username", "email", "is_staff", "is_superuser", "is_active", "last_login"]
    list_filter = [
        one_of("is_staff", "staff", YES_NO),
        one_of("is_superuser", "superuser", YES_NO),
        one_of("is_active", "active", YES_NO),
    ]
    search_fields = ["username__istartswith", "email__istartswith"]
    filter_horizontal = []
    autocomplete_fields = ["groups"]
    readonly_fields = ["last_login", "date_joined"]

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002 Django's signature
        """The change and its event in one transaction; `log_change` is called only where it was done."""
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def log_change(self, request: HttpRequest, obj: User, message: Any) -> Any:  # noqa: ARG002 Django's signature
        if request.resolver_match and request.resolver_match.url_name == "auth_user_password_change":
            actor, address = actor_of(request), client_address(request)
            record_operator_event(
                "user.password_changed", target=self.target_of(obj)[:200], actor=actor, source_address=address
            )


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, AuditedAdmin):
    noun = "group"
    search_fields = ["name"]
