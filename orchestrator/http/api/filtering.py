"""Filters of lists: only those that a view declares, each valid; nothing is silently ignored."""

from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from orchestrator.http.errors.problems import ApiError

OF_EVERY_LIST = frozenset({"limit", "cursor"})


class StrictFilters(DjangoFilterBackend):
    """Filters lists only: one thing is looked up by its id and nothing else. Unknown names are `StrictQuery`'s."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filterset = None if view.detail else self.get_filterset(request, queryset, view)
        if filterset is None:
            return queryset
        if not filterset.is_valid():
            errors = {name: [str(text) for text in texts] for name, texts in filterset.errors.items()}
            raise ApiError(400, "invalid_query", "The query is not valid.", errors=errors)
        return filterset.qs
