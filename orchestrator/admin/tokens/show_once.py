"""Things that come with a token: made by a verb, their token shown once, on the answer to the form."""

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


class CreateWithToken:
    """A page whose add form ends in a verb. Mixed into a ModelAdmin, which brings the form."""

    add_lead: str

    def make(self, request: HttpRequest, asked: dict[str, Any]) -> tuple[Model, str]:
        """Call the verb; return the row and its plain token."""
        raise NotImplementedError

    def add_view(
        self: Any,
        request: HttpRequest,
        form_url: str = "",  # noqa: ARG002 Django's signature
        extra_context: dict[str, Any] | None = None,  # noqa: ARG002 as above
    ) -> HttpResponse:
        """Not Django's own view: that one holds a transaction, and a verb is its own."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form: forms.BaseForm = self.get_form(request)(request.POST or None)
        if request.method == "POST" and form.is_valid():
            row, token = self.make(request, form.cleaned_data)
            return render_token_once(self, request, row, token)
        name = self.opts.verbose_name
        back = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        question = ConfirmPage(title=f"New {name}", lead=self.add_lead, button=f"Create {name}", back=back)
        return render_confirm(self, request, question, form)


def render_token_once(
    model_admin: BaseAdmin, request: HttpRequest, row: Model, token: str, *, noun: str = "Token"
) -> TemplateResponse:
    """The only page that ever has it. Django's admin forbids every cache to keep it."""
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": f"{noun} of {row}",
        "token": token,
        "row": row,
        "back": formatting.change_url(type(row), row.pk),
    }
    return TemplateResponse(request, "admin/token.html", context)
