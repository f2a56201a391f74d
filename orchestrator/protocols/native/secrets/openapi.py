"""OpenAPI of the operations on secrets and variables."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import DELETED, path_parameter
from orchestrator.protocols.native.openapi import QUERY, request_example, response_example
from orchestrator.protocols.native.secrets import serializers
from orchestrator.protocols.native.serializers import SLUG
from runtime_jobs.models.secrets import NAME_PATTERN

NAME = path_parameter("name", NAME_PATTERN)
ORGANIZATION = OpenApiParameter("org_slug", {"type": "string", "pattern": f"^{SLUG}$"}, QUERY, required=True)
REPOSITORY = OpenApiParameter(
    "repository",
    {"type": "string", "pattern": f"^{serializers.REPOSITORY}$"},
    QUERY,
    description="`owner/name`. Without it the one of the organization is deleted.",
)
_SHOWN: dict[str, Any] = {
    "name": "DEPLOY_TOKEN",
    "org_slug": "sandtrace",
    "repository": "cc-consulting-nv/web",
    "updated_by": {"kind": "client", "id": "token ci"},
    "created_at": "2026-03-17T20:00:00Z",
    "updated_at": "2026-03-17T20:00:00Z",
}
_SECRET = response_example("secret of a repository", _SHOWN, "200", "201")
_VARIABLE = response_example("variable of a repository", _SHOWN | {"value": "eu-central-1"}, "200", "201")
_SCOPE = {"org_slug": "sandtrace", "repository": "cc-consulting-nv/web"}

LIST_SECRETS = operation_docs("list_secrets", responses=serializers.SecretOutput(many=True), examples=[_SECRET])
SET_SECRET = operation_docs(
    "set_secret",
    request=serializers.SecretInput,
    responses={200: serializers.SecretOutput, 201: serializers.SecretOutput},
    parameters=[NAME],
    examples=[request_example("a secret of a repository", _SCOPE | {"value": "correct horse"}), _SECRET],
    codes=("not_found", "conflict"),
)
DELETE_SECRET = operation_docs(
    "delete_secret",
    responses={204: DELETED},
    parameters=[NAME, ORGANIZATION, REPOSITORY],
    codes=("not_found",),
)
LIST_VARIABLES = operation_docs("list_variables", responses=serializers.VariableOutput(many=True), examples=[_VARIABLE])
SET_VARIABLE = operation_docs(
    "set_variable",
    request=serializers.VariableInput,
    responses={200: serializers.VariableOutput, 201: serializers.VariableOutput},
    parameters=[NAME],
    examples=[request_example("a variable of a repository", _SCOPE | {"value": "eu-central-1"}), _VARIABLE],
    codes=("not_found", "conflict"),
)
DELETE_VARIABLE = operation_docs(
    "delete_variable",
    responses={204: DELETED},
    parameters=[NAME, ORGANIZATION, REPOSITORY],
    codes=("not_found",),
)
