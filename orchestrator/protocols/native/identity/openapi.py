"""OpenAPI of identity tokens."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.identity.tokens import MAX_AUDIENCE_LENGTH
from orchestrator.protocols.native.identity import serializers
from orchestrator.protocols.native.openapi import QUERY

AUDIENCE = OpenApiParameter(
    "audience",
    {"type": "string", "minLength": 1, "maxLength": MAX_AUDIENCE_LENGTH},
    QUERY,
    description="The verifier. Without it the URL of the repository's owner.",
)
REQUEST_TOKEN = "identityRequestToken"  # noqa: S105 the name of a scheme
API_VERSION = OpenApiParameter("api-version", {"type": "string", "minLength": 1}, QUERY, description="Ignored.")

IDENTITY_TOKEN = operation_docs(
    "get_identity_token",
    responses=serializers.IdentityTokenOutput,
    parameters=[AUDIENCE, API_VERSION],
    auth=[{REQUEST_TOKEN: []}],
    codes=("unauthenticated", "identity_refused"),
)
KEY_SET = operation_docs("get_identity_keys", responses=serializers.KeySetOutput, codes=())
DISCOVERY = operation_docs("get_identity_configuration", responses=serializers.DiscoveryOutput, codes=())


def add_scheme(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:  # noqa: ARG001 a hook of drf-spectacular
    """Add the scheme of the request token to the OpenAPI document (`POSTPROCESSING_HOOKS`)."""
    result.setdefault("components", {}).setdefault("securitySchemes", {})[REQUEST_TOKEN] = {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "Token in `ACTIONS_ID_TOKEN_REQUEST_TOKEN`, in the environment of a workflow job.",
    }
    return result
