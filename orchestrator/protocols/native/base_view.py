"""Base of the views of rows of organizations: whose rows a caller sees, lists, and responses to a creation."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin
from orchestrator.http.auth.callers import client_of
from runtime_jobs.errors import NotFound


class OrganizationViewSet(StrictQueryMixin, GenericViewSet):
    """Rows of the organizations that the caller may see. Any other row is answered like one that does not exist.

    Attributes:
        organization_slug: The column with the slug of a row's organization.
        parameters: The query parameters of each action but `list`, which has those of its filters.
        missing: The text of the error for a row that does not exist.
    """

    organization_slug: ClassVar[str] = "organization__slug"
    parameters: ClassVar[Mapping[str, frozenset[str]]] = {}
    missing: ClassVar[str]
    filterset_class: Any = None

    def query_parameters(self) -> frozenset[str]:
        if self.action != "list":
            return self.parameters.get(self.action, frozenset())
        return LIST_PARAMETERS | set(self.filterset_class.base_filters if self.filterset_class else ())

    def all_rows(self) -> QuerySet[Any]:
        """Return the rows of all organizations."""
        raise NotImplementedError

    def get_queryset(self) -> QuerySet[Any]:
        rows = self.all_rows()
        if getattr(self, "swagger_fake_view", False):
            return rows.none()
        organizations = client_of(self.request).organizations
        return rows if organizations is None else rows.filter(**{f"{self.organization_slug}__in": organizations})

    def own_row(self, public_id: str) -> Any:
        """Return the row with this id in `lookup_field`.

        Raises:
            NotFound: It does not exist, or the caller may not see it.
        """
        row = self.get_queryset().filter(**{self.lookup_field: public_id}).first()
        if row is None:
            raise NotFound(self.missing)
        return row

    def list_rows(self, serialize: Callable[[Any], dict[str, Any]]) -> Response:
        """Return the page of the list that the request asks for."""
        return self.page_of(self.filter_queryset(self.get_queryset()), serialize)

    def page_of(self, rows: QuerySet[Any], serialize: Callable[[Any], dict[str, Any]]) -> Response:
        """Return the page of other rows that the request asks for."""
        page: Iterable[Any] = self.paginate_queryset(rows) or []
        return self.get_paginated_response([serialize(row) for row in page])


def created_response(body: dict[str, Any], location: str, *, is_new: bool, status: int = 201) -> Response:
    """Return the response to a request with an idempotency key.

    Args:
        body: The resource.
        location: Its path.
        is_new: Whether this request has created it, not an earlier one with the same key.
        status: The status of either.
    """
    headers = {"Location": location} | ({} if is_new else {"Idempotency-Replayed": "true"})
    return Response(body, status=status, headers=headers)
