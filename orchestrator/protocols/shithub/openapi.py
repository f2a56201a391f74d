"""OpenAPI parts that all operations of this protocol share: errors, authentication."""

from typing import Any

from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers

from orchestrator.http.api.openapi import ProblemSchema
from orchestrator.http.errors.problems import TITLES

# Codes that this protocol never has: it ignores `Accept`, `Content-Type` and the query.
_UNUSED = frozenset({"not_acceptable", "unsupported_media_type", "wrong_principal", "invalid_query", "forbidden"})
# Schemes of authentication by the kind of the token that a view accepts.
_SCHEMES = {"registration": "registrationToken", "job": "jobToken", "user": "apiToken"}


class ShithubError(serializers.Serializer):
    """An error. Clients decide by the status alone."""

    error = serializers.CharField()


class ShithubSchema(ProblemSchema):
    """Schema of one operation of this protocol."""

    def error_response(self, status: int, codes: list[str]) -> tuple[OpenApiResponse, str]:
        return OpenApiResponse(ShithubError, f"{TITLES[status]}: {', '.join(codes)}."), "application/json"

    def codes(self) -> set[str]:
        unused = _UNUSED if self._is_for_users else _UNUSED | {"insufficient_scope"}
        return super().codes() - unused

    def get_tags(self) -> list[str]:
        return ["shithub"]

    def get_auth(self) -> list[Any]:
        return [{_SCHEMES[self._credential]: []}]

    @property
    def _credential(self) -> str:
        view: Any = self.view
        return str(view.credential)

    @property
    def _is_for_users(self) -> bool:
        return self._credential == "user"

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        """Remove the challenge of a 401, which runners are not sent."""
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        if not self._is_for_users and "401" in bodies:
            bodies["401"]["headers"].pop("WWW-Authenticate", None)
        return bodies


_DEFINITIONS = {
    "registrationToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "Registration token of a runner: 64 hexadecimal digits.",
    },
    "jobToken": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "Token of a job, for one call. Each response contains the next one.",
    },
}


def add_schemes(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:  # noqa: ARG001 a hook of drf-spectacular
    """Add the schemes of runners to the OpenAPI document (`POSTPROCESSING_HOOKS`)."""
    result.setdefault("components", {}).setdefault("securitySchemes", {}).update(_DEFINITIONS)
    return result
