"""What stands behind the `?` of an address: only what the operation knows, each once, none empty."""

from typing import Any

from rest_framework.request import Request

from orchestrator.http.errors.problems import ApiError


def invalid_query(name: str, detail: str) -> ApiError:
    return ApiError(400, "invalid_query", "The query is not valid.", errors={name: [detail]})


class StrictQueryMixin:
    """For views, before DRF's own classes."""

    def query_parameters(self) -> frozenset[str]:
        """The names that the present action knows."""
        return frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc] # DRF's, by the order of the bases
        for name, values in request.query_params.lists():
            if name not in self.query_parameters():
                raise invalid_query(name, "Unknown parameter.")
            if len(values) > 1:
                raise invalid_query(name, "Given more than once.")
            if not values[0]:
                raise invalid_query(name, "It is empty.")
