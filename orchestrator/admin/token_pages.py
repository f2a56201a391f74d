"""Pages that create something with a token, and display the token once."""

from typing import Any, ClassVar

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.text import capfirst
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin, ReadOnlyAdmin
from orchestrator.admin.confirm import ConfirmPage, confirm_for_row, render_confirm
from orchestrator.core.cause import Cause


class CreateByOperation:
    """Replaces the add view of a ModelAdmin: an operation creates the row."""

    add_description: str

    def respond_to_form(self, request: HttpRequest, values: dict[str, Any]) -> HttpResponse:
        """Call the operation with the values of a valid form. Return the next page."""
        raise NotImplementedError

    def add_view(
        self: Any,
        request: HttpRequest,
        form_url: str = "",  # noqa: ARG002 Django's signature
        extra_context: dict[str, Any] | None = None,  # noqa: ARG002 as above
    ) -> HttpResponse:
        """Render the form or create the row. Django's own view opens a transaction, but an operation opens its own."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form: forms.BaseForm = self.get_form(request)(request.POST or None)
        if request.method == "POST" and form.is_valid():
            return self.respond_to_form(request, form.cleaned_data)
        name = self.opts.verbose_name
        back = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        page = ConfirmPage(title=f"New {name}", description=self.add_description, button=f"Create {name}", back=back)
        return render_confirm(self, request, page, form)


class CreateWithToken(CreateByOperation):
    """Displays the token of the new row once."""

    label = "Token"

    def create(self, request: HttpRequest, values: dict[str, Any]) -> tuple[Model, str]:
        """Call the operation. Return the row and its plain token."""
        raise NotImplementedError

    def respond_to_form(self: Any, request: HttpRequest, values: dict[str, Any]) -> HttpResponse:
        row, token = self.create(request, values)
        return render_token_once(self, request, row, token, label=self.label)


class RevocableTokenAdmin(CreateWithToken, ReadOnlyAdmin):
    """Creates tokens, and revokes them by a button.

    Attributes:
        details: The fields of the page of a token.
        requested: The fields of the form of a new one.
    """

    details: ClassVar[list[str]]
    requested: ClassVar[list[str]]
    ordering = ["-id"]
    actions_detail = ["revoke"]
    creator = formatting.value_column("created_by", "Created by")
    age = formatting.age_column("created_at", "Created")
    created = formatting.timestamp_column("created_at", "Created")
    expiry = formatting.timestamp_column("expires_at", "Expires")
    revoked = formatting.timestamp_column("revoked_at", "Revoked")

    def revoke_row(self, row: Any, cause: Cause) -> Any:
        """Call the operation that revokes a token."""
        raise NotImplementedError

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 Django's signature
        return request.user.has_perm(f"{self.opts.app_label}.add_{self.opts.model_name}")

    def get_fields(self, _request: HttpRequest, obj: Model | None = None) -> list[str]:
        return self.details if obj else self.requested

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        row = self.get_object(request, object_id)
        return super().get_actions_detail(request, object_id) if row and row.revoked_at is None else []

    @action(
        description="Revoke", url_path="revoke", permissions=["operate"], icon="block", variant=ActionVariant.DANGER
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def act(row: Any, cause: Cause) -> str:
            self.revoke_row(row, cause)
            return f"{capfirst(self.opts.verbose_name)} {row} revoked"

        noun = self.label.lower()
        text = f"Requests with this {noun} are refused at once. A revoked {noun} cannot be restored."
        title = "Revoke {row}"
        return confirm_for_row(
            self, request, object_id, act, button="Revoke", description=text, title=title, danger=True
        )

    @display(description="State", label={"valid": "success", "expired": "default", "revoked": "danger"})
    def state_badge(self, row: Any) -> str:
        if row.revoked_at:
            return "revoked"
        return "expired" if row.expires_at and row.expires_at <= timezone.now() else "valid"


def render_token_once(
    model_admin: BaseAdmin, request: HttpRequest, row: Model, token: str, *, label: str = "Token"
) -> TemplateResponse:
    """Render the only page that shows a token. Django's admin forbids caches to store the page."""
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": f"{label} of {row}",
        "token": token,
        "row": row,
        "back": formatting.change_url(type(row), row.pk),
    }
    return TemplateResponse(request, "admin/token.html", context)
