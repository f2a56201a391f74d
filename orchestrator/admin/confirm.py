"""The page between a button and its verb: says what will happen, asks for what the verb needs."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest
from django.template.response import TemplateResponse
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from orchestrator.admin.base import BaseAdmin
from orchestrator.http.observability.log_redaction import redacted


class ReasonForm(forms.Form):
    """Every verb wants to know why; the trail keeps it."""

    reason = forms.CharField(
        max_length=500,
        widget=UnfoldAdminTextInputWidget(attrs={"autofocus": True, "placeholder": "Why? It is kept in the trail."}),
        error_messages={"required": "Say why: it is kept in the trail."},
    )

    def clean_reason(self) -> str:
        """The trail keeps it for ever, and everybody who may look reads it: no place for a key."""
        return redacted(self.cleaned_data["reason"])


class NoteForm(ReasonForm):
    """A reason, and what everybody who looks at the worker should know."""

    note = forms.CharField(max_length=200, widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}), required=False)


@dataclass(frozen=True)
class ConfirmPage:
    """What the page says. `back` is where Cancel leads; `danger` makes the button red."""

    title: str
    lead: str
    button: str
    back: str
    danger: bool = False


def render_confirm(
    model_admin: BaseAdmin, request: HttpRequest, question: ConfirmPage, form: forms.BaseForm, **context: Any
) -> TemplateResponse:
    context |= {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": question.title,
        "question": question,
        "form": form,
        "media": model_admin.media + form.media,
    }
    return TemplateResponse(request, "admin/ask.html", context, status=400 if form.errors else 200)
