"""Keys of people for the Bencher API: created and revoked here, displayed once. No page contains a digest."""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, confirm_and_act
from orchestrator.admin.filters import YES_NO, ChoiceFilter, ExactFilter
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.token_pages import CreateWithToken
from orchestrator.services import personal_keys
from runtime_jobs.models import PersonalKey


class KeyOwnerFilter(ExactFilter):
    """Filters by user name."""

    title = "user"
    parameter_name = "user__username"


class KeyFormFilter(ChoiceFilter):
    """Filters by whether the key is a JSON Web Token."""

    title = "JSON Web Token"
    parameter_name = "is_jwt"
    options: ClassVar = YES_NO


@admin.register(PersonalKey)
class PersonalKeyAdmin(CreateWithToken, ReadOnlyAdmin):
    """Creates and revokes personal keys."""

    label = "Key"
    add_description = (
        "Creates a key for the Bencher API, with which a program may do there what the user may do. "
        "Only a superuser creates keys of other people. "
        "The next page shows it once."
    )
    list_display = ["name", "user", "form_text", "state_badge", "creator", "age", "expiry"]
    list_filter = [KeyOwnerFilter, KeyFormFilter]
    list_select_related = ["user"]
    search_fields = ["name__startswith", "user__username__startswith"]
    search_help_text = "Name or user name (prefix)"
    ordering = ["-id"]
    actions_detail = ["revoke"]
    details = ["name", "user", "form_text", "state_badge", "creator", "created", "expiry", "revoked"]
    creator = formatting.value_column("created_by", "Created by")
    age = formatting.age_column("created_at", "Created")
    created = formatting.timestamp_column("created_at", "Created")
    expiry = formatting.timestamp_column("expires_at", "Expires")
    revoked = formatting.timestamp_column("revoked_at", "Revoked")

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 Django's signature
        return request.user.has_perm("runtime_jobs.add_personalkey")

    def has_revoke_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.change_personalkey")

    def get_autocomplete_fields(self, request: HttpRequest) -> Sequence[str]:
        return ["user"] if request.user.is_superuser else []

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer only the own name to all but superusers, who alone create keys of other people."""
        if db_field.name == "user" and not request.user.is_superuser:
            kwargs |= {
                "queryset": User.objects.filter(username=request.user.get_username()),
                "initial": request.user.pk,
            }
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def get_fields(self, _request: HttpRequest, obj: PersonalKey | None = None) -> list[str]:
        return self.details if obj else ["user", "name", "is_jwt", "expires_at"]

    def create(self, request: HttpRequest, values: dict[str, Any]) -> tuple[PersonalKey, str]:
        return personal_keys.create_personal_key(**values, creator=request.user, cause=cause_of(request))

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        key = self.get_object(request, object_id)
        return super().get_actions_detail(request, object_id) if key and key.revoked_at is None else []

    @action(description="Revoke", url_path="revoke", permissions=["revoke"], icon="block", variant=ActionVariant.DANGER)
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self.get_object(request, object_id)
        if key is None:
            raise Http404
        form, back = ReasonForm(request.POST or None), formatting.change_url(PersonalKey, key.pk)
        description = "Requests with this key are refused at once. A revoked key cannot be restored."
        page = ConfirmPage(f"Revoke {key}", description, "Revoke", back, danger=True)

        def revoke() -> str:
            personal_keys.revoke_personal_key(key_id=key.pk, cause=cause_of(request, form))
            return f"Personal key {key} revoked"

        return confirm_and_act(self, request, page, form, revoke)

    @display(description="State", label={"valid": "success", "expired": "default", "revoked": "danger"})
    def state_badge(self, key: PersonalKey) -> str:
        if key.revoked_at:
            return "revoked"
        return "expired" if key.expires_at and key.expires_at <= timezone.now() else "valid"

    @display(description="Form")
    def form_text(self, key: PersonalKey) -> str:
        return "JSON Web Token" if key.is_jwt else "Key"
