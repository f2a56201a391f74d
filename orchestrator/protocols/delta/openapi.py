"""OpenAPI parts that runners and runs share: errors and authentication."""

from typing import Any, Literal

from drf_spectacular.utils import OpenApiResponse

from orchestrator.http.api.openapi import ProblemSchema
from orchestrator.http.errors.problems import TITLES
from orchestrator.protocols.delta.runners.permissions import CanUseLease
from orchestrator.protocols.delta.serializers import DeltaError


class DeltaSchema(ProblemSchema):
    """Schema of one operation of this protocol."""

    def error_response(self, status: int, codes: list[str]) -> tuple[OpenApiResponse, str]:
        return OpenApiResponse(DeltaError, f"{TITLES[status]}: {', '.join(codes)}."), "application/json"

    def codes(self) -> set[str]:
        """Return the error codes without `unknown_field`: this protocol ignores unknown fields."""
        return super().codes() - {"unknown_field"}

    def get_tags(self) -> list[str]:
        return ["delta"]

    def get_auth(self) -> list[Any]:
        """Allow no authentication for messages about a lease: a pool can accept the lease id instead."""
        schemes = super().get_auth()
        by_lease = any(isinstance(permission, CanUseLease) for permission in self.view.get_permissions())
        return [*schemes, {}] if by_lease else schemes

    def _map_basic_serializer(self, serializer: Any, direction: Literal["request", "response"]) -> dict[str, Any]:
        """Allow additional fields in requests."""
        mapped = super()._map_basic_serializer(serializer, direction)
        return mapped if direction == "response" else mapped | {"additionalProperties": {}}
