"""OpenAPI of the operations on payload schemas."""

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import DELETED
from orchestrator.protocols.native.openapi import PATH, QUERY, request_example, response_example
from orchestrator.protocols.native.payload_schemas import serializers
from orchestrator.protocols.native.serializers import SLUG
from runtime_jobs.specs import PAYLOAD_TYPES

JOB_TYPE = OpenApiParameter("job_type", {"type": "string", "enum": list(PAYLOAD_TYPES)}, PATH, required=True)
_ORGANIZATION = OpenApiParameter("org_slug", {"type": "string", "pattern": f"^{SLUG}$"}, QUERY, required=True)
_DOCUMENT = {"type": "object", "required": ["imageRef"], "properties": {"imageRef": {"type": "string"}}}
_SCHEMA = response_example(
    "schema of scans",
    {
        "org_slug": "acme-corp",
        "job_type": "scan",
        "document": _DOCUMENT,
        "version": 1,
        "changed_by": {"kind": "client", "id": "token ci"},
        "changed_at": "2026-03-17T20:00:00Z",
    },
)

LIST_PAYLOAD_SCHEMAS = operation_docs(
    "list_payload_schemas", responses=serializers.PayloadSchemaOutput(many=True), examples=[_SCHEMA]
)
SET_PAYLOAD_SCHEMA = operation_docs(
    "set_payload_schema",
    request=serializers.PayloadSchemaInput,
    responses=serializers.PayloadSchemaOutput,
    parameters=[JOB_TYPE],
    examples=[request_example("a required member", {"org_slug": "acme-corp", "document": _DOCUMENT}), _SCHEMA],
    codes=("not_found",),
)
DELETE_PAYLOAD_SCHEMA = operation_docs(
    "delete_payload_schema",
    responses={204: DELETED},
    parameters=[JOB_TYPE, _ORGANIZATION],
    codes=("not_found",),
)
