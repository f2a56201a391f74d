"""Base classes of the admin's pages: closed lookups, uncounted large tables, read-only by default."""

import re
from typing import Any

from django.contrib import messages
from django.contrib.admin import ShowFacets
from django.contrib.admin.views.main import ERROR_FLAG, IGNORED_PARAMS, PAGE_VAR
from django.contrib.admin.widgets import RelatedFieldWidgetWrapper
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import OperationalError
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from unfold.admin import ModelAdmin
from unfold.paginator import InfinitePaginator
from unfold.views import ChangeList

from orchestrator.admin.filters import parameters_of
from orchestrator.admin.formatting import changelist_url
from runtime_jobs.db_errors import QUERY_CANCELED, sqlstate_of
from runtime_jobs.events import Actor
from runtime_jobs.models import OperatorEvent

MAX_NOTED = 5  # parameters in a note
MAX_PAGES = 200  # of an uncounted list: a deeper page means an OFFSET over all rows before it


def actor_of(request: HttpRequest) -> Actor:
    """Return the operator who sent the request."""
    return Actor("operator", request.user.get_username())


class BaseAdmin(ModelAdmin):
    """Sets what all pages of the admin have in common."""

    show_facets = ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    list_filter_submit = True
    list_disable_select_all = True
    change_list_template: Any = "admin/rows.html"

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:  # noqa: ARG002 Django's signature
        """Allow only the parameters of the page's filters.

        Django would allow any column, and a lease id or a digest could be guessed letter by letter through the address
        (`?lease_ulid__startswith=…`).
        """
        return any(lookup in parameters_of(list_filter) for list_filter in self.get_list_filter(request))

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Drop the theme's menu beside a choice, which adds and edits other rows in pop-up windows."""
        found = super().formfield_for_dbfield(db_field, request, **kwargs)
        if found and isinstance(found.widget, RelatedFieldWidgetWrapper):
            found.widget = found.widget.widget
        return found

    def target_of(self, row: Any) -> str | None:  # noqa: ARG002 a hook
        """Return the name of the row in operator events; None if it has no events of its own."""
        return None

    def existing_row(self, request: HttpRequest, object_id: str) -> Any:
        """Return a row.

        Raises:
            Http404: There is no such row.
        """
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        return row

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the operator events of the row. Others learn neither its name nor that it exists."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        if row is not None and (target := self.target_of(row)):
            return HttpResponseRedirect(changelist_url(OperatorEvent, target=target))
        return super().history_view(request, object_id, extra_context)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Render the list at once, so that a search that exceeds the statement timeout gets a message.

        A parameter that the list does not have is ignored, and so is a page after the last one. The reader is informed.
        """
        _drop_parameters(request, [name for name in request.GET if not self._is_parameter(name, request)])
        try:
            response = super().changelist_view(request, extra_context)
            if isinstance(response, HttpResponseRedirect) and response.url == f"{request.path}?{ERROR_FLAG}=1":
                return _without_page(request)
            return _without_indentation(response.render()) if isinstance(response, TemplateResponse) else response
        except OperationalError as error:
            if sqlstate_of(error) != QUERY_CANCELED or not request.GET:
                raise
            messages.warning(
                request, "The search timed out. Narrow the search by an organization, a job id or a commit."
            )
            return HttpResponseRedirect(request.path)

    def _is_parameter(self, name: str, request: HttpRequest) -> bool:
        return name in {*IGNORED_PARAMS, PAGE_VAR, ERROR_FLAG} or self.lookup_allowed(name, "", request)


def _without_indentation(response: HttpResponse) -> HttpResponse:
    """Remove the indentation of the theme's templates, a fifth of a list. Lists have no element that displays it."""
    response.content = re.sub(rb"\n\s+", b"\n", response.content)
    return response


def _drop_parameters(request: HttpRequest, names: list[str]) -> None:
    """Remove parameters from the request, so that no link of the page has them, and add a note to the page."""
    if not names:
        return
    kept = request.GET.copy()
    for name in names:
        del kept[name]
    request.GET = kept  # type: ignore[assignment] # Django's stubs have an immutable one
    ignored = ", ".join(sorted(name.replace("\0", "")[:60] for name in names)[:MAX_NOTED])
    rest = ("parameter", "which was") if len(names) == 1 else ("parameters", "which were")
    messages.warning(request, f"The list does not have the {rest[0]} {ignored}, {rest[1]} ignored.")


def _without_page(request: HttpRequest) -> HttpResponse:
    """Redirect to the list without the page that it does not have, or else without all parameters."""
    kept = request.GET.copy()
    pages = kept.pop(PAGE_VAR, [])
    text = f"has no page {pages[0][:20]}" if pages else "cannot be filtered like this"
    messages.warning(request, f"The list {text}.")
    return HttpResponseRedirect(f"{request.path}?{kept.urlencode()}" if pages and kept else request.path)


class ReadOnlyAdmin(BaseAdmin):
    """Displays rows without forms. Changes are actions, each with a button of its own."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 Django's signature
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 as above
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 as above
        return False

    def has_operate_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        """Return whether the caller may use the buttons: by default with the permission to change the rows."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")


class FixedOrderChangeList(ChangeList):
    """Keeps the page's own order, which has an index. `sortable_by` hides the headings, but does not refuse `?o=3`."""

    def get_ordering(self, request: HttpRequest, _queryset: QuerySet[Any]) -> list[str]:
        return list(self.model_admin.get_ordering(request))


class LargeTableAdmin(ReadOnlyAdmin):
    """Displays a table with too many rows to count, to sort without an index, or to page through to the end."""

    show_full_result_count = False
    sortable_by = ()

    def get_changelist(self, _request: HttpRequest, **_: Any) -> type[ChangeList]:
        return FixedOrderChangeList

    def get_paginator(self, _request: HttpRequest, queryset: QuerySet[Any], per_page: int, *_: Any) -> Paginator:
        paginator = InfinitePaginator(queryset, per_page)
        paginator.count = MAX_PAGES * per_page
        return paginator
