"""Pages that create something with a token, and display the token once."""

from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from orchestrator.admin import formatting
from orchestrator.admin.base import BaseAdmin
from orchestrator.admin.confirm import ConfirmPage, render_confirm


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
