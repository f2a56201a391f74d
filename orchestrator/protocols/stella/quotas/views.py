"""Views of `/api/quotas`: list, read, change by a merge patch."""

from dataclasses import replace
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator.http.api.headers import if_match_tags
from orchestrator.http.api.json_parser import MergePatchParser, StrictJSONParser, body_of
from orchestrator.http.api.pagination import KeysetPages
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin, invalid_query
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.limits import quotas
from orchestrator.limits.quota_use import QuotaRows, QuotaUse, quota_uses
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.openapi import StellaSchema
from orchestrator.protocols.stella.quotas import openapi
from orchestrator.protocols.stella.quotas.names import resolve_quota
from orchestrator.protocols.stella.quotas.serializers import QuotaPatchInput
from orchestrator.protocols.stella.quotas.wire import serialize_tenant_quota
from orchestrator.protocols.stella.serializers import JOB_TYPES_OR_ALL
from orchestrator.protocols.stella.tenants import tenants_of
from runtime_jobs.models.tenants import Scope


class TenantQuotaViewSet(StrictQueryMixin, GenericViewSet):
    """Quotas of the tenants that the caller may see: one for each job type and one for all types together."""

    lookup_url_kwarg = "quota_id"
    lookup_value_regex = "[^/]{1,120}"
    http_method_names = ["get", "head", "patch"]
    schema = StellaSchema()
    parser_classes = [StrictJSONParser, MergePatchParser]
    filter_backends: list[Any] = []
    pagination_class = KeysetPages

    def query_parameters(self) -> frozenset[str]:
        return LIST_PARAMETERS | {"tenant", "jobType"} if self.action == "list" else frozenset()

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_QUOTA if self.action == "partial_update" else Scope.ORCH_READ)]

    @openapi.LIST_TENANT_QUOTAS
    def list(self, request: Request) -> Response:
        """List quotas by tenant, the newest tenant first, whether or not one of their limits is set."""
        tenants = tenants_of(client_of(request), request.query_params.get("tenant"))
        job_type = request.query_params.get("jobType")
        if job_type is not None and job_type not in JOB_TYPES_OR_ALL:
            raise invalid_query("jobType", f"Must be one of: {', '.join(JOB_TYPES_OR_ALL)}.")
        rows = QuotaRows(tenants) if job_type is None else QuotaRows(tenants, (job_type,))
        page: Any = self.paginate_queryset(rows)  # type: ignore[arg-type] # rows of no single table
        return self.get_paginated_response([serialize_tenant_quota(use) for use in page])

    @openapi.GET_TENANT_QUOTA
    def retrieve(self, request: Request, quota_id: str) -> Response:
        """Return one quota. Its version is in the ETag."""
        return _quota_response(quota_uses([resolve_quota(client_of(request), quota_id)])[0])

    @openapi.UPDATE_TENANT_QUOTA
    def partial_update(self, request: Request, quota_id: str) -> Response:
        """Change all named members at once. Running jobs above a lowered limit continue."""
        body = QuotaPatchInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        tenant, job_type = resolve_quota(client_of(request), quota_id)
        changed = quotas.set_quota(
            org_slug=tenant,
            job_type=job_type,
            changes=body.validated_data["changes"],
            cause=cause_of(request, body.validated_data["reason"]),
            if_versions=if_match_tags(request),
        )
        # As this request has left it: another one may have changed it since.
        return _quota_response(replace(quota_uses([(tenant, job_type)])[0], quota=changed))


def _quota_response(use: QuotaUse) -> Response:
    return Response(serialize_tenant_quota(use), headers={"ETag": f'"{use.quota.version}"'})
