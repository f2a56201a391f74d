"""View of `/api/dashboard/metrics`."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.dashboard import openapi
from orchestrator.protocols.stella.dashboard.wire import serialize_dashboard
from orchestrator.protocols.stella.openapi import StellaSchema
from orchestrator.protocols.stella.tenants import tenants_of
from orchestrator.selectors.dashboard import read_dashboard
from runtime_jobs.models.tenants import Scope


class DashboardMetricsView(StrictQueryMixin, APIView):
    """Numbers of the tenants that the caller may see."""

    http_method_names = ["get", "head"]
    schema = StellaSchema()

    def query_parameters(self) -> frozenset[str]:
        return frozenset({"tenant"})

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ)]

    @openapi.DASHBOARD_METRICS
    def get(self, request: Request) -> Response:
        """Return the numbers of now and of the last hour in one document. Large numbers are counted up to a bound."""
        tenants = tenants_of(client_of(request), request.query_params.get("tenant"))
        return Response(serialize_dashboard(read_dashboard(tenants), tenants))
