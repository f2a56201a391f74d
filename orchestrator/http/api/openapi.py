"""OpenAPI: every operation says which problem documents it answers, with which codes and headers; nothing else may be
sent or answered than what stands there."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers

from orchestrator.http.auth.permissions import IsWorker
from orchestrator.http.errors.error_codes import CODES
from orchestrator.http.errors.problems import MEDIA_TYPE, TITLES

F = TypeVar("F", bound=Callable[..., Any])

COMMON_ERRORS = (
    *("invalid_query", "unauthenticated", "wrong_principal", "not_acceptable", "rate_limited"),
    *("busy", "overloaded", "database_unavailable"),
)
OF_CLIENTS = ("insufficient_scope", "forbidden")
OF_BODIES = (
    *("malformed_json", "unknown_field", "invalid", "request_timeout", "length_required"),
    *("payload_too_large", "unsupported_media_type"),
)


class Problem(serializers.Serializer):
    """RFC 9457. `code` is stable: docs/api.md has them all. The members after `request_id` come with some codes."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.ChoiceField(choices=list(CODES))
    request_id = serializers.CharField()
    errors = serializers.DictField(  # type: ignore[assignment] # a field here, not the serializer's own attribute
        child=serializers.ListField(child=serializers.CharField()), required=False, help_text="By field or parameter."
    )
    reason = serializers.CharField(required=False)
    job_status = serializers.CharField(required=False)
    newer_job_id = serializers.CharField(required=False)
    expected_seq = serializers.IntegerField(required=False)
    scope = serializers.CharField(required=False)
    limit = serializers.IntegerField(required=False)
    limited_by = serializers.CharField(required=False)
    open_streams = serializers.IntegerField(required=False)
    version = serializers.IntegerField(required=False)
    max_timeout_seconds = serializers.IntegerField(required=False)
    error = serializers.DictField(required=False, help_text="Of ingest: `code`, `message` and `fields` once more.")


def operation_docs(operation_id: str, *, codes: tuple[str, ...] = (), **kwargs: Any) -> Callable[[F], F]:
    """Say of an operation what OpenAPI wants to know, and which codes it answers besides those that all do."""

    def marked(function: F) -> F:
        vars(function)["refused_with"] = codes
        return extend_schema(operation_id=operation_id, **kwargs)(function)

    return marked


class ProblemSchema(AutoSchema):
    """The OpenAPI of one operation, with its refusals."""

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies = super()._get_response_bodies(direction)
        for status, codes in sorted(self._refusals().items()):
            if str(status) not in bodies:
                response, media_type = self.error_response(status, codes)
                bodies[str(status)] = self._get_response_for_code(response, str(status), [media_type])
        for answered, body in bodies.items():
            body["headers"] = body.get("headers", {}) | _headers_of(answered)
        return bodies

    def error_response(self, status: int, codes: list[str]) -> tuple[OpenApiResponse, str]:
        """How a refusal looks, and its media type. A door with errors of its own says so here."""
        return OpenApiResponse(Problem, description=f"{TITLES[status]}: {', '.join(codes)}."), MEDIA_TYPE

    def _refusals(self) -> dict[int, list[str]]:
        by_status, told = defaultdict(list), self.codes()
        for code in CODES:  # in the table's order
            if code in told:
                by_status[CODES[code].status].append(f"`{code}`")
        return by_status

    def codes(self) -> set[str]:
        """The codes that this operation answers."""
        operation = getattr(self.view, getattr(self.view, "action", None) or self.method.lower(), None)
        special = getattr(operation, "refused_with", ("not_found", "conflict"))
        bodies = OF_BODIES if self.method in {"POST", "PATCH"} else ()
        return {*COMMON_ERRORS, *(() if is_for_workers(self.view) else OF_CLIENTS), *bodies, *special}

    def get_serializer_name(self, serializer: Any, direction: Literal["request", "response"]) -> str:
        """Return the published name of a component: `JobInput` is `Job`, `JobOutput` is `JobShown`."""
        name = str(super().get_serializer_name(serializer, direction))
        if name.endswith("Input"):
            return name.removesuffix("Input")
        return f"{name.removesuffix('Output')}Shown" if name.endswith("Output") and name != "Output" else name

    def _map_basic_serializer(self, serializer: Any, direction: Literal["request", "response"]) -> dict[str, Any]:
        """What is not named is refused in requests, and not there in answers."""
        mapped: dict[str, Any] = super()._map_basic_serializer(serializer, direction)
        return mapped | {"additionalProperties": False}


def _headers_of(status: str) -> dict[str, Any]:
    text = {"schema": {"type": "string"}}
    seconds = {"schema": {"type": "integer", "minimum": 1}}
    headers: dict[str, Any] = {"X-Request-Id": text | {"description": "The caller's, or a new one.", "required": True}}
    if status in {"429", "503"}:
        headers["Retry-After"] = seconds | {"description": "Seconds.", "required": True}
    if status == "401":
        headers["WWW-Authenticate"] = text | {"required": True}
    return headers


def is_for_workers(view: Any) -> bool:
    return any(isinstance(permission, IsWorker) for permission in view.get_permissions())


class BearerScheme(OpenApiAuthenticationExtension):
    """Two kinds of tokens in one header: workers' and clients'."""

    target_class = "orchestrator.http.auth.authentication.BearerToken"
    name = ["apiToken", "workerToken"]

    def get_security_definition(self, auto_schema: AutoSchema) -> list[dict[str, str]]:  # noqa: ARG002 theirs
        return [
            {"type": "http", "scheme": "bearer", "description": "`rto_api_…`, with the scopes it was made for."},
            {"type": "http", "scheme": "bearer", "description": "`rto_worker_…`, for the worker's own leases."},
        ]

    def get_security_requirement(self, auto_schema: AutoSchema) -> dict[str, list[Any]]:
        return {"workerToken" if is_for_workers(auto_schema.view) else "apiToken": []}


class CertificateScheme(OpenApiAuthenticationExtension):
    """A worker's client certificate, as the operator's proxy passes it on. OpenAPI 3.0 has no word for mutual TLS."""

    target_class = "orchestrator.http.auth.client_certificates.ProxyClientCertAuth"
    name = "workerCertificate"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:  # noqa: ARG002 theirs
        about = "Mutual TLS: the proxy checks the certificate and says its subject in the header that settings name."
        return {"type": "apiKey", "in": "header", "name": "CERTIFICATE_HEADER", "description": about}


class SessionScheme(OpenApiAuthenticationExtension):
    """The browser's session, which opens nothing that is for workers."""

    target_class = "orchestrator.http.auth.authentication.BrowserSession"
    name = "session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:  # noqa: ARG002 theirs
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}

    def get_security_requirement(self, auto_schema: AutoSchema) -> Any:
        return None if is_for_workers(auto_schema.view) else {"session": []}
