"""API tokens and project keys: created and revoked here, displayed once. No page contains a digest."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, render_confirm
from orchestrator.admin.filters import RelatedOrganizationFilter
from orchestrator.admin.forms import ReasonForm
from orchestrator.admin.token_pages import CreateWithToken
from orchestrator.services import credentials
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import ApiToken
from runtime_jobs.models.tenants import Scope


class ApiTokenForm(forms.ModelForm):
    """Refuses a token without scopes, and a project key with scopes or of another organization."""

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        project, organization = values.get("project"), values.get("organization")
        if project is None and not values.get("scopes"):
            self.add_error("scopes", "Choose at least one scope, or a project.")
        if project is not None and values.get("scopes"):
            self.add_error("scopes", "The key of a project has no scopes. Choose none, or no project.")
        if project is not None and organization is not None and project.organization_id != organization.pk:
            self.add_error("project", f"Choose a project of the organization {organization.slug}.")
        return values


@admin.register(ApiToken)
class ApiTokenAdmin(CreateWithToken, ReadOnlyAdmin):
    """Creates and revokes API tokens."""

    add_description = (
        "Creates a token for a client of the organization, or a key of one of its projects for the Bencher API. "
        "The next page shows it once."
    )
    list_display = ["name", "organization", "project_text", "state_badge", "scope_list", "creator", "age", "expiry"]
    list_filter = [RelatedOrganizationFilter]
    list_select_related = ["organization", "project"]
    autocomplete_fields = ["organization", "project"]
    form = ApiTokenForm
    search_fields = ["name__startswith"]
    search_help_text = "Name (prefix)"
    ordering = ["-id"]
    actions_detail = ["revoke"]
    details = [
        "name",
        "organization",
        "project_text",
        "state_badge",
        "scope_list",
        "creator",
        "created",
        "expiry",
        "revoked",
    ]
    creator = formatting.value_column("created_by", "Created by")
    age = formatting.age_column("created_at", "Created")
    created = formatting.timestamp_column("created_at", "Created")
    expiry = formatting.timestamp_column("expires_at", "Expires")
    revoked = formatting.timestamp_column("revoked_at", "Revoked")

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 Django's signature
        return request.user.has_perm("runtime_jobs.add_apitoken")

    def has_revoke_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.change_apitoken")

    def get_fields(self, _request: HttpRequest, obj: ApiToken | None = None) -> list[str]:
        return self.details if obj else ["organization", "project", "name", "scopes", "expires_at"]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "scopes":
            return forms.MultipleChoiceField(
                choices=[(scope, scope) for scope in Scope.values],
                widget=UnfoldAdminCheckboxSelectMultipleWidget,
                required=False,
                help_text="Of a token for the native API. The key of a project has none.",
            )
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def create(self, request: HttpRequest, values: dict[str, Any]) -> tuple[ApiToken, str]:
        return credentials.create_api_token(**values, cause=cause_of(request))

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
            description = "Requests with this token are refused at once. A revoked token cannot be restored."
            return render_confirm(
                self, request, ConfirmPage(f"Revoke {token}", description, "Revoke", back, danger=True), form
            )
        try:
            credentials.revoke_api_token(token_id=token.pk, cause=cause_of(request, form))
            messages.success(request, f"API token {token} revoked.")
        except LifecycleError as refusal:
            messages.warning(request, refusal.message)
        return HttpResponseRedirect(back)

    @display(description="State", label={"valid": "success", "expired": "default", "revoked": "danger"})
    def state_badge(self, token: ApiToken) -> str:
        if token.revoked_at:
            return "revoked"
        return "expired" if token.expires_at and token.expires_at <= timezone.now() else "valid"

    @display(description="Scopes")
    def scope_list(self, token: ApiToken) -> str:
        return ", ".join(token.scopes) or formatting.NO_VALUE

    @display(description="Project")
    def project_text(self, token: ApiToken) -> str:
        return token.project.slug if token.project else formatting.NO_VALUE
