"""OpenAPI of the operations on quotas."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.headers import IF_MATCH_PATTERN
from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import request_example, response_example
from orchestrator.protocols.stella.openapi import (
    HEADER,
    JOB_TYPE_OR_ALL,
    PATH,
    TENANT,
)
from orchestrator.protocols.stella.quotas import serializers

QUOTA_ID = OpenApiParameter("quota_id", {"type": "string"}, PATH, required=True, description="`{tenant}:{jobType}`")
IF_MATCH = OpenApiParameter(
    "If-Match",
    {"type": "string", "pattern": f"^({IF_MATCH_PATTERN})$"},
    HEADER,
    description="The ETag, or the `version` in quotes, that you read; several, or `*`. Required: without it the "
    "response is 428.",
)
ETAG = OpenApiParameter(
    "ETag", {"type": "string"}, HEADER, required=True, response=[200], description="The version of the quota."
)
_FIELDS: dict[str, Any] = {
    "id": "acme-corp:*",
    "tenant": "acme-corp",
    "jobType": "*",
    "maxActive": 50,
    "maxPerHour": 500,
    "burst": 10,
    "priority": {"emergency": {"maxActive": 5, "skipQueue": True}},
    "active": 12,
    "startedLastHour": 318,
    "nextEligibleAt": None,
    "setBy": {"kind": "operator", "id": "olga"},
    "setAt": "2025-11-29T12:00:00Z",
    "version": "17.3-18.1-19.1",
}
_QUOTA = response_example("quota of all job types", _FIELDS)

LIST_TENANT_QUOTAS = operation_docs(
    "list_tenant_quotas",
    responses=serializers.TenantQuotaOutput(many=True),
    parameters=[TENANT, JOB_TYPE_OR_ALL],
    examples=[_QUOTA],
    codes=("not_found",),
)
GET_TENANT_QUOTA = operation_docs(
    "get_tenant_quota",
    responses=serializers.TenantQuotaOutput,
    parameters=[QUOTA_ID, ETAG],
    examples=[_QUOTA],
    codes=("not_found",),
)
UPDATE_TENANT_QUOTA = operation_docs(
    "update_tenant_quota",
    request=serializers.QuotaPatchInput,
    responses=serializers.TenantQuotaOutput,
    parameters=[QUOTA_ID, IF_MATCH, ETAG],
    examples=[
        request_example("other limits", {"maxActive": 50, "maxPerHour": 500, "burst": 10}),
        request_example("no more limit of running jobs", {"maxActive": None, "reason": "the migration is done"}),
        _QUOTA,
    ],
    codes=("not_found", "operator_only", "version_conflict", "precondition_required"),
)
