"""OpenAPI of the list of sources."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import response_example
from orchestrator.protocols.stella.openapi import QUERY, TENANT
from orchestrator.protocols.stella.sources.serializers import JobSourceOutput
from orchestrator.selectors.sources import STATUSES

STATUS = OpenApiParameter("status", {"type": "string", "enum": list(STATUSES)}, QUERY)
PAUSED_FIELDS: dict[str, Any] = {
    "sourceId": "acme-corp:scan",
    "tenant": "acme-corp",
    "jobType": "scan",
    "project": None,
    "status": "paused",
    "until": "2025-11-29T13:00:00Z",
    "maxPerHour": None,
    "burst": None,
    "setBy": {"kind": "client", "id": "token ops"},
    "setAt": "2025-11-29T12:00:00Z",
    "reason": "the registry is down",
    "queued": 42,
}
LIST_SOURCES = operation_docs(
    "list_sources",
    responses=JobSourceOutput(many=True),
    parameters=[TENANT, STATUS],
    examples=[response_example("paused job type", PAUSED_FIELDS)],
    codes=("not_found",),
)
