"""OpenAPI parts that all resources of this protocol share: errors, authentication, parameters of lists."""

from typing import Any, Final, Literal

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from orchestrator.http.api.openapi import ProblemSchema
from orchestrator.http.errors.error_codes import CODES
from orchestrator.http.errors.problems import TITLES
from orchestrator.protocols.bencher.errors import BAD_REQUESTS

# Statuses and codes that this protocol never has: it ignores `Accept`, unknown fields and unknown parameters.
_UNUSED = frozenset({"not_acceptable", "unknown_field", "wrong_principal", "insufficient_scope", "invalid_query"})
_TOTAL_COUNT: Final = {
    "schema": {"type": "integer", "minimum": 0},
    "description": "Number of all rows of a list; else 1, and 0 after a deletion.",
    "required": True,
}


class BencherError(serializers.Serializer):
    """Error envelope. `error_code` is the code that the native API has for the same error."""

    request_id = serializers.CharField()
    error_code = serializers.ChoiceField(choices=list(CODES), required=False)
    message = serializers.CharField()


class BencherSchema(ProblemSchema):
    """Schema of one operation of this protocol."""

    def error_response(self, status: int, codes: list[str]) -> tuple[OpenApiResponse, str]:
        return OpenApiResponse(BencherError, f"{TITLES[status]}: {', '.join(codes)}."), "application/json"

    def codes(self) -> set[str]:
        """Return the error codes, with `invalid` for parameters and headers that cannot be used."""
        return super().codes() - _UNUSED | {"invalid", "forbidden"}

    def get_tags(self) -> list[str]:
        return ["bencher"]

    def _codes_by_status(self) -> dict[int, list[str]]:
        by_status: dict[int, list[str]] = {}
        for status, codes in super()._codes_by_status().items():
            by_status.setdefault(400 if status in BAD_REQUESTS else status, []).extend(codes)
        return by_status

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies = super()._get_response_bodies(direction)
        for status, body in bodies.items():
            if status.startswith("2"):
                body["headers"] = body.get("headers", {}) | {"X-Total-Count": _TOTAL_COUNT}
        return bodies

    def _map_basic_serializer(self, serializer: Any, direction: Literal["request", "response"]) -> dict[str, Any]:
        """Allow additional fields in requests."""
        mapped = super()._map_basic_serializer(serializer, direction)
        return mapped if direction == "response" else mapped | {"additionalProperties": {}}


class PersonScheme(OpenApiAuthenticationExtension):
    """Personal keys and JSON Web Tokens of people."""

    target_class = "orchestrator.protocols.bencher.authentication.PersonAuthentication"
    name = "bencherUser"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        about = "Personal key (`bencher_user_…`) or JSON Web Token of this server."
        return {"type": "http", "scheme": "bearer", "description": about}


class OptionalCallerScheme(OpenApiAuthenticationExtension):
    """Keys of people or of a project, or no credentials."""

    target_class = "orchestrator.protocols.bencher.authentication.OptionalCallerAuthentication"
    name = "bencherProject"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "Key of a project (`bencher_run_…`)."}

    def get_security_requirement(self, auto_schema: AutoSchema) -> Any:
        return [{"bencherUser": []}, {"bencherProject": []}, {}]


def query(name: str, description: str = "", **schema: Any) -> OpenApiParameter:
    """Return an optional query parameter of the type `string`, or of another that `schema` names."""
    return OpenApiParameter(name, {"type": "string"} | schema, "query", description=description)


PAGE_PARAMETERS: Final = [
    query("direction", "Default: `asc` by name, `desc` by creation.", enum=["asc", "desc"]),
    query("per_page", "0: only `X-Total-Count`.", type="integer", minimum=0, maximum=255, default=8),
    query("page", "0 is the same as 1.", type="integer", minimum=0, maximum=2**32 - 1, default=1),
]
LIST_PARAMETERS: Final = [
    query("sort", enum=["name", "created"], default="name"),
    *PAGE_PARAMETERS,
    query("name", "Exact name.", minLength=1, maxLength=64, pattern=r"^\S(.*\S)?$"),
    query("search", "Part of the name, slug or UUID, in any case."),
    query("archived", "True: archived ones as well.", type="boolean", default=False),
]


def resource_id(name: str) -> OpenApiParameter:
    """Return the path parameter that names a resource by its UUID or slug."""
    pattern = "^[a-z0-9]+(-[a-z0-9]+)*$"
    return OpenApiParameter(
        name,
        {"type": "string", "maxLength": 64, "pattern": pattern},
        "path",
        required=True,
        description="UUID or slug.",
    )
