"""The page between a button and its action: it says what will happen and asks for a reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from orchestrator.admin.base import BaseAdmin, actor_of
from orchestrator.admin.formatting import change_url
from orchestrator.admin.forms import ReasonForm
from orchestrator.core.cause import Cause
from orchestrator.http.client_ip import client_address
from runtime_jobs.errors import LifecycleError


@dataclass(frozen=True)
class ConfirmPage:
    """Texts of a confirmation page.

    Attributes:
        title: Heading, with the name of the object.
        description: Consequences of the action.
        button: Label of the button that submits the form.
        back: Address that the button Back leads to.
        danger: Displays the submit button in red.
    """

    title: str
    description: str
    button: str
    back: str
    danger: bool = False


def render_confirm(
    model_admin: BaseAdmin, request: HttpRequest, page: ConfirmPage, form: forms.BaseForm, **context: Any
) -> TemplateResponse:
    """Render a confirmation page with its form; status 400 if the form has errors."""
    context |= {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": page.title,
        "confirm": page,
        "form": form,
        "media": model_admin.media + form.media,
    }
    return TemplateResponse(request, "admin/confirm.html", context, status=400 if form.errors else 200)


def confirm_and_act(
    model_admin: BaseAdmin, request: HttpRequest, page: ConfirmPage, form: forms.Form, act: Callable[[], str]
) -> HttpResponse:
    """Render a confirmation page; or, after its form was submitted, act and return to `page.back` with a message.

    Args:
        model_admin: The page of the resource.
        request: The request.
        page: Texts of the confirmation page.
        form: The bound form.
        act: Performs the action and returns the message without its full stop. A refusal is shown instead.
    """
    if request.method != "POST" or not form.is_valid():
        return render_confirm(model_admin, request, page, form)
    try:
        messages.success(request, f"{act()}.")
    except LifecycleError as refusal:
        messages.warning(request, refusal.message)
    return HttpResponseRedirect(page.back)


def confirm_for_row(
    model_admin: BaseAdmin,
    request: HttpRequest,
    object_id: str,
    act: Callable[[Any, Cause], str],
    *,
    button: str,
    description: str,
    title: str = "{button}: {row}",
    back: str = "",
    danger: bool = False,
    form: forms.Form | None = None,
) -> HttpResponse:
    """Render the confirmation page of a button of one row, or act; see `confirm_and_act`.

    Args:
        model_admin: The page of the resource.
        request: The request.
        object_id: The row.
        act: Performs the action on the row for a cause, and returns the message.
        button: Label of the button.
        description: Consequences of the action.
        title: The heading, a format of the button and the row.
        back: Where the page leads to; by default to the page of the row.
        danger: Displays the submit button in red.
        form: The bound form, if it asks for more than a reason.

    Raises:
        Http404: There is no such row.
    """
    row = model_admin.existing_row(request, object_id)
    bound = form or ReasonForm(request.POST or None)
    heading, address = title.format(button=button, row=row), back or change_url(type(row), row.pk)
    page = ConfirmPage(heading, description, button, address, danger=danger)
    return confirm_and_act(model_admin, request, page, bound, lambda: act(row, cause_of(request, bound)))


def cause_of(request: HttpRequest, form: forms.Form | None = None) -> Cause:
    """Return the cause of what an operator asks for, with the reason of the form if the page has one."""
    reason = form.cleaned_data["reason"] if form else ""
    return Cause(actor_of(request), reason, client_address(request))
