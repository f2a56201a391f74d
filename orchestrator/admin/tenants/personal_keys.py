"""Keys of people for the Bencher API: created and revoked here, displayed once. No page contains a digest."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from unfold.decorators import display

from orchestrator.admin.confirm import cause_of
from orchestrator.admin.filters import YES_NO, choice_filter, exact_filter
from orchestrator.admin.token_pages import RevocableTokenAdmin
from orchestrator.core.cause import Cause
from orchestrator.services import personal_keys
from runtime_jobs.models import PersonalKey


@admin.register(PersonalKey)
class PersonalKeyAdmin(RevocableTokenAdmin):
    """Creates and revokes personal keys."""

    label = "Key"
    add_description = (
        "Creates a key for the Bencher API, with which a program may do there what the user may do. "
        "Only a superuser creates keys of other people. "
        "The next page shows it once."
    )
    list_display = ["name", "user", "form_text", "state_badge", "creator", "age", "expiry"]
    list_filter = [exact_filter("user", "user__username"), choice_filter("JSON Web Token", "is_jwt", YES_NO)]
    list_select_related = ["user"]
    search_fields = ["name__startswith", "user__username__startswith"]
    search_help_text = "Name or user name (prefix)"
    details = ["name", "user", "form_text", "state_badge", "creator", "created", "expiry", "revoked"]
    requested = ["user", "name", "is_jwt", "expires_at"]

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

    def create(self, request: HttpRequest, values: dict[str, Any]) -> tuple[PersonalKey, str]:
        return personal_keys.create_personal_key(**values, creator=request.user, cause=cause_of(request))

    def revoke_row(self, row: PersonalKey, cause: Cause) -> PersonalKey:
        return personal_keys.revoke_personal_key(key_id=row.pk, cause=cause)

    @display(description="Form")
    def form_text(self, key: PersonalKey) -> str:
        return "JSON Web Token" if key.is_jwt else "Key"
