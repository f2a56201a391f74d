"""OpenAPI of the operations on packs."""

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import path_parameter
from orchestrator.protocols.native.openapi import PATH, QUERY, request_example, response_example
from orchestrator.protocols.native.packs import serializers
from orchestrator.protocols.native.serializers import SLUG
from runtime_jobs.specs.packs import PACK_ID, PACK_VERSION

_PACK_ID = OpenApiParameter(
    "pack_id", {"type": "string", "pattern": f"^{PACK_ID.pattern}$"}, PATH, required=True, description="Its name."
)
_VERSION = path_parameter("version", PACK_VERSION.pattern)
_ORGANIZATION = OpenApiParameter(
    "org_slug",
    {"type": "string", "pattern": f"^{SLUG}$"},
    QUERY,
    description="Required for callers who see several organizations.",
)
_PLAN = {
    "name": "scan an image",
    "inputs": {"imageRef": {"required": True}, "level": {"default": "high"}},
    "steps": ['scan "$INPUT_IMAGEREF" --level "$INPUT_LEVEL" > report.json'],
    "artifacts": [{"type": "report", "path_glob": "report.json"}],
}
_LISTED = {
    "org_slug": "acme-corp",
    "pack_id": "vuln-scan-and-report",
    "version": "1.2.0",
    "plan_hash": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "created_by": {"kind": "client", "id": "token ci"},
    "created_at": "2026-03-17T20:00:00Z",
}

LIST_PACKS = operation_docs(
    "list_packs",
    responses=serializers.ListedPackOutput(many=True),
    examples=[response_example("a version of a pack", _LISTED)],
)
GET_PACK = operation_docs(
    "get_pack_version",
    responses=serializers.PackVersionOutput,
    parameters=[_PACK_ID, _VERSION, _ORGANIZATION],
    examples=[response_example("a version with its plan", _LISTED | {"plan": _PLAN})],
    codes=("not_found",),
)
REGISTER_PACK = operation_docs(
    "register_pack_version",
    request=serializers.PackVersionInput,
    responses={200: serializers.PackVersionOutput, 201: serializers.PackVersionOutput},
    parameters=[_PACK_ID, _VERSION],
    examples=[
        request_example("a step with two inputs", {"plan": _PLAN}),
        response_example("the new version", _LISTED | {"plan": _PLAN}, "201"),
    ],
    codes=("not_found", "conflict"),
)
