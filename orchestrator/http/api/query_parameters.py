"""Query parameters: only those of the operation, each at most once and not empty; filters of lists."""

from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from orchestrator.http.errors.problems import ApiError

LIST_PARAMETERS = frozenset({"limit", "cursor"})


def invalid_query(name: str, problem: str) -> ApiError:
    """Return the error `invalid_query` for one parameter, with what is wrong with it."""
    return ApiError(400, "invalid_query", f"The query parameter {name[:100]} is not valid.", errors={name: [problem]})


class StrictQueryMixin:
    """Refuses query parameters that the current action does not declare. Precedes DRF's classes in the bases."""

    def query_parameters(self) -> frozenset[str]:
        """Return the names of the parameters of the current action."""
        return frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc] # DRF's, by the order of the bases
        allowed = self.query_parameters()
        for name, values in request.query_params.lists():
            if name not in allowed:
                known = f"Allowed here: {', '.join(sorted(allowed))}." if allowed else "This operation has none."
                raise invalid_query(name, f"Unknown parameter. {known}")
            if len(values) > 1:
                raise invalid_query(name, f"Given {len(values)} times; at most once is allowed.")
            if not values[0]:
                raise invalid_query(name, "The value is empty. Send a value, or omit the parameter.")


class StrictFilters(DjangoFilterBackend):
    """Filters lists, and refuses invalid values. An action on a single object has no filters."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filterset = None if view.detail else self.get_filterset(request, queryset, view)
        if filterset is None:
            return queryset
        if not filterset.is_valid():
            errors = {name: [str(text) for text in texts] for name, texts in filterset.errors.items()}
            detail = f"Query parameters are not valid: {', '.join(sorted(errors))}."
            raise ApiError(400, "invalid_query", detail, errors=errors)
        return filterset.qs
