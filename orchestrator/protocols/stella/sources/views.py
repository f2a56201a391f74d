"""View of `/api/sources`."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator.http.api.pagination import KeysetPages
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin, invalid_query
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.openapi import StellaSchema
from orchestrator.protocols.stella.sources import openapi
from orchestrator.protocols.stella.sources.wire import serialize_source
from orchestrator.protocols.stella.tenants import tenants_of
from orchestrator.selectors.sources import STATUSES, SourceRows
from runtime_jobs.models.tenants import Scope


class JobSourceViewSet(StrictQueryMixin, GenericViewSet):
    """Sources of the tenants that the caller may see."""

    http_method_names = ["get", "head"]
    schema = StellaSchema()
    filter_backends: list[Any] = []
    pagination_class = KeysetPages

    def query_parameters(self) -> frozenset[str]:
        return LIST_PARAMETERS | {"tenant", "status"}

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ)]

    @openapi.LIST_SOURCES
    def list(self, request: Request) -> Response:
        """List sources by tenant, the newest tenant first, whether or not they are paused or throttled."""
        tenants = tenants_of(client_of(request), request.query_params.get("tenant"))
        status = request.query_params.get("status")
        if status is not None and status not in STATUSES:
            raise invalid_query("status", f"Must be one of: {', '.join(STATUSES)}.")
        page: Any = self.paginate_queryset(SourceRows(tenants, status))  # type: ignore[arg-type] # as for quotas
        return self.get_paginated_response([serialize_source(source) for source in page])
