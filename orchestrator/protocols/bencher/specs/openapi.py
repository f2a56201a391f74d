"""OpenAPI of the operations on hardware specs."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiExample, OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.openapi import LIST_PARAMETERS, resource_id
from orchestrator.protocols.bencher.specs.serializers import NewSpecInput, SpecChangeInput, SpecDocument

SPEC_ID: Final = resource_id("spec")
NO_CONTENT: Final = OpenApiResponse(description="Deleted.")
_HARDWARE: Final[dict[str, Any]] = {
    "os": "linux",
    "architecture": "x86_64",
    "sandbox": None,
    "cpu": 2,
    "memory": 4294967296,
    "disk": 10737418240,
    "network": False,
}
SPEC_EXAMPLE: Final[dict[str, Any]] = {
    "uuid": "019a2b1c-0000-7000-8000-000000000001",
    "name": "Two cores",
    "slug": "two-cores",
    **_HARDWARE,
    "fallback": None,
    "created": "2026-01-01T00:00:00Z",
    "modified": "2026-01-01T00:00:00Z",
    "archived": None,
}

LIST_SPECS_DOCS = operation_docs(
    "list_specs", responses=SpecDocument(many=True), parameters=LIST_PARAMETERS, codes=("not_found",)
)
CREATE_SPEC_DOCS = operation_docs(
    "create_spec",
    request=NewSpecInput,
    responses={201: SpecDocument},
    examples=[
        OpenApiExample("new spec", {"name": "Two cores", **_HARDWARE}, request_only=True),
        OpenApiExample("spec", SPEC_EXAMPLE, response_only=True, status_codes=["201"]),
    ],
    codes=("not_found", "conflict"),
)
GET_SPEC_DOCS = operation_docs("get_spec", responses=SpecDocument, parameters=[SPEC_ID], codes=("not_found",))
CHANGE_SPEC_DOCS = operation_docs(
    "change_spec",
    request=SpecChangeInput,
    responses=SpecDocument,
    parameters=[SPEC_ID],
    codes=("not_found", "conflict"),
)
DELETE_SPEC_DOCS = operation_docs(
    "delete_spec", responses={204: NO_CONTENT}, parameters=[SPEC_ID], codes=("not_found", "conflict")
)
