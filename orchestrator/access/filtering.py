"""Filters of lists: only those that a view declares, each once, each valid; nothing is silently ignored."""

from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from orchestrator.access.pagination import invalid_query
from orchestrator.access.problems import Refusal

_OF_THE_LIST = {"limit", "cursor"}


class StrictFilters(DjangoFilterBackend):
    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filterset = self.get_filterset(request, queryset, view)
        known = _OF_THE_LIST | (set(filterset.filters) if filterset else set())
        for name, values in request.query_params.lists():
            if name not in known:
                raise invalid_query(name, "Unknown filter.")
            if len(values) > 1:
                raise invalid_query(name, "Given more than once.")
        if filterset is None:
            return queryset
        if not filterset.is_valid():
            errors = {name: [str(text) for text in texts] for name, texts in filterset.errors.items()}
            raise Refusal(400, "invalid_query", "The query is not valid.", errors=errors)
        return filterset.qs
