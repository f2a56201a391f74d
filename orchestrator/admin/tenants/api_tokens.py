"""API tokens and project keys: created and revoked here, displayed once. No page contains a digest."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from orchestrator.admin import formatting
from orchestrator.admin.confirm import cause_of
from orchestrator.admin.filters import RelatedOrganizationFilter
from orchestrator.admin.token_pages import RevocableTokenAdmin
from orchestrator.core.cause import Cause
from orchestrator.services import credentials
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
class ApiTokenAdmin(RevocableTokenAdmin):
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
    details = [
        *("name", "organization", "project_text", "state_badge", "scope_list", "creator"),
        *("created", "expiry", "revoked"),
    ]
    requested = ["organization", "project", "name", "scopes", "expires_at"]

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

    def revoke_row(self, row: ApiToken, cause: Cause) -> ApiToken:
        return credentials.revoke_api_token(token_id=row.pk, cause=cause)

    @display(description="Scopes")
    def scope_list(self, token: ApiToken) -> str:
        return ", ".join(token.scopes) or formatting.NO_VALUE

    @display(description="Project")
    def project_text(self, token: ApiToken) -> str:
        return token.project.slug if token.project else formatting.NO_VALUE
