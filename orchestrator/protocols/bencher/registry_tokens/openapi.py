"""OpenAPI of the token service of the image registry."""

from typing import Any, Final

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiExample

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.openapi import query
from orchestrator.protocols.bencher.registry_tokens.serializers import RegistryTokenDocument, RegistryTokenRequest

_TOKEN: Final[dict[str, Any]] = {
    "token": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.….…",
    "access_token": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.….…",
    "expires_in": 300,
    "issued_at": "2026-01-01T00:00:00Z",
    "scope": "repository:adapter:pull,push",
}
_EXAMPLE: Final = OpenApiExample("token for a push", _TOKEN, response_only=True)


class KeyAsPasswordScheme(OpenApiAuthenticationExtension):
    """Keys as the password of Basic authentication."""

    target_class = "orchestrator.protocols.bencher.registry_tokens.authentication.KeyAsPassword"
    name = "bencherPassword"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        about = "Any user name; as password a personal key, a JSON Web Token or the key of a project."
        return {"type": "http", "scheme": "basic", "description": about}


GET_REGISTRY_TOKEN_DOCS = operation_docs(
    "get_registry_token",
    responses=RegistryTokenDocument,
    parameters=[
        query("service", "Name of the registry."),
        query("account", "User name."),
        query("scope", "Such as `repository:adapter:pull,push`. It may be repeated."),
    ],
    examples=[_EXAMPLE],
)
POST_REGISTRY_TOKEN_DOCS = operation_docs(
    "create_registry_token",
    request={"application/x-www-form-urlencoded": RegistryTokenRequest},
    responses=RegistryTokenDocument,
    examples=[_EXAMPLE],
)
