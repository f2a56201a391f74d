"""Secrets and variables: set and deleted here. No page shows a secret, not even a form with errors."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import ConfirmPage, cause_of, confirm_for_row, render_confirm
from orchestrator.admin.filters import RelatedOrganizationFilter, exact_filter
from orchestrator.admin.token_pages import CreateByOperation
from orchestrator.core.cause import Cause
from orchestrator.secrets.operations import (
    delete_secret,
    delete_variable,
    set_secret,
    set_variable,
    validate_value,
    validate_variable,
)
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.models import Organization, Repository, Secret, Variable
from runtime_jobs.models.secrets import NAME, ScopedValue


class HiddenTextarea(UnfoldAdminTextareaWidget):
    """A text area whose content is never rendered, so that an error elsewhere in the form shows no secret."""

    def format_value(self, _value: Any) -> str:
        return ""


def _value_field(check: Callable[[str], str | None], widget: forms.Widget, help_text: str) -> forms.CharField:
    def validator(value: str) -> None:
        if error := check(value):
            raise forms.ValidationError(error)

    return forms.CharField(strip=False, widget=widget, validators=[validator], help_text=help_text)


def _secret_field() -> forms.CharField:
    widget = HiddenTextarea(attrs={"rows": 6, "autocomplete": "off", "spellcheck": "false"})
    return _value_field(validate_value, widget, "At most 48 KiB. No page shows it again.")


def _variable_field() -> forms.CharField:
    widget = UnfoldAdminTextareaWidget(attrs={"rows": 6})
    return _value_field(
        validate_variable, widget, "At most 48 KiB, without ${{. Everyone who opens this page can read it."
    )


class SecretValueForm(forms.Form):
    """Asks for the new value of a secret."""

    value = _secret_field()


class VariableValueForm(forms.Form):
    """Asks for the new value of a variable."""

    value = _variable_field()


class NewScopedValueForm(forms.ModelForm):
    """Asks for the scope, the name and the value. Another form adds the field of the value."""

    full_name = forms.CharField(
        label="Repository",
        required=False,
        max_length=201,
        widget=UnfoldAdminTextInputWidget,
        help_text="owner/name. Empty: for all repositories of the organization.",
    )

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if not NAME.fullmatch(name):
            raise forms.ValidationError("Letters, digits and underscores. The first character is not a digit.")
        return name

    def clean(self) -> dict[str, Any]:
        values = dict(self.cleaned_data)
        organization, full_name = values.get("organization"), values.pop("full_name", "").strip()
        values["repository"] = None
        if full_name and organization:
            values["repository"] = _find_repository(organization, full_name)
            if values["repository"] is None:
                self.add_error("full_name", f"The organization {organization.slug} has no such repository.")
        return values

    def _post_clean(self) -> None:
        """Skip the checks of the model's fields: the operation creates the row."""


class NewSecretForm(NewScopedValueForm):
    """Asks for a new secret."""

    value = _secret_field()


class NewVariableForm(NewScopedValueForm):
    """Asks for a new variable."""

    value = _variable_field()


class ScopedValueAdmin(CreateByOperation, ReadOnlyAdmin):
    """Displays named values; every change is a button."""

    list_display = ["name", "organization", "repository_text", "editor", "age"]
    list_filter = [RelatedOrganizationFilter, exact_filter("name", "name__iexact")]
    list_select_related = ["organization", "repository"]
    autocomplete_fields = ["organization"]
    search_fields = ["name__istartswith"]
    search_help_text = "Name (prefix)"
    ordering = ["-id"]
    actions_detail = ["change_value", "delete_value"]
    details: list[str] = ["name", "organization", "repository_text", "editor", "created", "updated"]
    editor = formatting.value_column("updated_by", "Updated by")
    age = formatting.age_column("updated_at", "Updated")
    created = formatting.timestamp_column("created_at", "Created")
    updated = formatting.timestamp_column("updated_at", "Updated")

    value_form: type[forms.Form]

    def set_row(self, **values: Any) -> tuple[Any, bool]:
        """Call the operation that sets a value."""
        raise NotImplementedError

    def delete_row(self, **values: Any) -> None:
        """Call the operation that deletes a value."""
        raise NotImplementedError

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 Django's signature
        return request.user.has_perm("runtime_jobs.change_secret")

    def has_edit_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm("runtime_jobs.change_secret")

    def get_fields(self, _request: HttpRequest, obj: Any = None) -> list[str]:
        return list(self.details) if obj else ["organization", "full_name", "name", "value"]

    def respond_to_form(self, request: HttpRequest, values: dict[str, Any]) -> HttpResponse:
        return self._apply(request, values)

    @action(description="Change value", url_path="value", permissions=["edit"], icon="edit")
    def change_value(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row = self.existing_row(request, object_id)
        form = self.value_form(request.POST or None)
        if request.method == "POST" and form.is_valid():
            return self._apply(request, _scope_of(row) | {"value": form.cleaned_data["value"]})
        description = "Jobs that are claimed from then on receive the new value. Running jobs keep the old one."
        page = ConfirmPage(f"New value of {row}", description, "Save value", formatting.change_url(self.model, row.pk))
        return render_confirm(self, request, page, form)

    @action(description="Delete", url_path="remove", permissions=["edit"], icon="delete", variant=ActionVariant.DANGER)
    def delete_value(self, request: HttpRequest, object_id: str) -> HttpResponse:

        def act(row: ScopedValue, cause: Cause) -> str:
            self.delete_row(**_scope_of(row), cause=cause)
            return f"{self.opts.verbose_name.capitalize()} {row} deleted"

        return confirm_for_row(
            self,
            request,
            object_id,
            act,
            button="Delete",
            description="Jobs that are claimed from then on do not receive it. Running jobs keep it.",
            title="Delete {row}",
            back=formatting.changelist_url(self.model),
            danger=True,
        )

    @display(description="Repository")
    def repository_text(self, row: ScopedValue) -> str:
        return row.repository.full_name if row.repository else formatting.NO_VALUE

    def _apply(self, request: HttpRequest, values: dict[str, Any]) -> HttpResponse:
        try:
            row, is_new = self.set_row(**values, cause=cause_of(request))
        except LifecycleError as refusal:
            errors = refusal.errors if isinstance(refusal, Invalid) else {}
            text = " ".join(text for texts in errors.values() for text in texts)
            messages.warning(request, text or refusal.message)
            return HttpResponseRedirect(formatting.changelist_url(self.model))
        change = "created" if is_new else "changed"
        messages.success(request, f"{self.opts.verbose_name.capitalize()} {row} {change}.")
        return HttpResponseRedirect(formatting.change_url(self.model, row.pk))


@admin.register(Secret)
class SecretAdmin(ScopedValueAdmin):
    """Sets and deletes secrets."""

    form = NewSecretForm
    value_form = SecretValueForm
    add_description = (
        "Workflow jobs receive the secret when they are claimed, and it is masked in their logs. "
        "A secret of this scope and name gets the new value."
    )

    def set_row(self, **values: Any) -> tuple[Secret, bool]:
        return set_secret(**values)

    def delete_row(self, **values: Any) -> None:
        delete_secret(**values)


@admin.register(Variable)
class VariableAdmin(ScopedValueAdmin):
    """Sets and deletes variables."""

    form = NewVariableForm
    value_form = VariableValueForm
    add_description = (
        "Workflow jobs receive the variable when they are claimed. "
        "A variable of this scope and name gets the new value."
    )
    details = [*ScopedValueAdmin.details, "value"]

    def set_row(self, **values: Any) -> tuple[Variable, bool]:
        return set_variable(**values)

    def delete_row(self, **values: Any) -> None:
        delete_variable(**values)


def _scope_of(row: ScopedValue) -> dict[str, Any]:
    return {"organization": row.organization, "repository": row.repository, "name": row.name}


def _find_repository(organization: Organization, full_name: str) -> Repository | None:
    owner, _, name = full_name.replace("\0", "").partition("/")
    rows = Repository.objects.select_related("project").filter(project__organization=organization)
    return rows.filter(owner__iexact=owner, name__iexact=name).first()
