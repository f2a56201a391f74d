"""API tokens: made and ended here, shown once. No page ever has a digest."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from orchestrator import services
from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin, actor_of
from orchestrator.admin.confirm import ConfirmPage, ReasonForm, render_confirm
from orchestrator.admin.filters import exactly
from orchestrator.admin.tokens.show_once import CreateWithToken
from orchestrator.http.client_ip import client_address
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import ApiToken
from runtime_jobs.models.tenants import Scope


@admin.register(ApiToken)
class ApiTokenAdmin(CreateWithToken, ReadOnlyAdmin):
    add_lead = "A program of the organization may use the token that the next page shows, once."
    list_display = ["name", "organization", "shown_state", "shown_scopes", "created_by", "created", "expiry"]
    list_filter = [exactly("organization__slug", "organization")]
    list_select_related = ["organization"]
    autocomplete_fields = ["organization"]
    search_fields = ["name__startswith"]
    search_help_text = "the beginning of its name"
    ordering = ["-id"]
    actions_detail = ["revoke"]
    facts = ["name", "organization", "shown_state", "shown_scopes", "created_by"]
    facts += ["creation", "expiry", "revocation"]
    creation = formatting.time_of("created_at", "Created")
    expiry = formatting.time_of("expires_at", "Expires")
    revocation = formatting.time_of("revoked_at", "Revoked")

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 Django's signature
        return request.user.has_perm("runtime_jobs.add_apitoken")

    def has_revoke_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.change_apitoken")

    def get_fields(self, _request: HttpRequest, obj: ApiToken | None = None) -> list[str]:
        return self.facts if obj else ["organization", "name", "scopes", "expires_at"]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "scopes":
            return forms.MultipleChoiceField(
                choices=[(scope, scope) for scope in Scope.values], widget=UnfoldAdminCheckboxSelectMultipleWidget
            )
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def make(self, request: HttpRequest, asked: dict[str, Any]) -> tuple[ApiToken, str]:
        return services.create_api_token(**asked, actor=actor_of(request), source_address=client_address(request))

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        token = self.get_object(request, object_id)
        return super().get_actions_detail(request, object_id) if token and token.revoked_at is None else []

    @action(description="Revoke", url_path="revoke", permissions=["revoke"], icon="block", variant=ActionVariant.DANGER)
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        token = self.get_object(request, object_id)
        if token is None:
            raise Http404
        form, back = ReasonForm(request.POST or None), formatting.change_url(ApiToken, token.pk)
        if request.method != "POST" or not form.is_valid():
            question = ConfirmPage(
                f"Revoke {token}", "For good: it stops counting at once.", "Revoke", back, danger=True
            )
            return render_confirm(self, request, question, form)
        try:
            services.revoke_api_token(
                token_id=token.pk,
                actor=actor_of(request),
                reason=form.cleaned_data["reason"],
                source_address=client_address(request),
            )
            messages.success(request, f"{token} counts no more.")
        except LifecycleError as refusal:
            messages.warning(request, refusal.message)
        return HttpResponseRedirect(back)

    @display(description="State", label={"valid": "success", "expired": "default", "revoked": "danger"})
    def shown_state(self, token: ApiToken) -> str:
        if token.revoked_at:
            return "revoked"
        return "expired" if token.expires_at and token.expires_at <= timezone.now() else "valid"

    @display(description="Scopes")
    def shown_scopes(self, token: ApiToken) -> str:
        return ", ".join(token.scopes)

    @display(description="Created")
    def created(self, token: ApiToken) -> SafeString:
        return formatting.with_timestamp(formatting.time_ago(token.created_at, timezone.now()), token.created_at)
