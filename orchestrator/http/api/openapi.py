"""OpenAPI of every operation: error responses with their codes and headers, closed schemas, authentication schemes."""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.permissions import AllowAny

from orchestrator.http.auth.permissions import IsWorker
from orchestrator.http.errors.error_codes import CODES
from orchestrator.http.errors.problems import MEDIA_TYPE, TITLES

F = TypeVar("F", bound=Callable[..., Any])

COMMON_ERRORS = (
    *("invalid_query", "not_acceptable", "rate_limited"),
    *("busy", "overloaded", "database_unavailable"),
)
CREDENTIAL_ERRORS = ("unauthenticated", "wrong_principal")
CLIENT_ERRORS = ("insufficient_scope", "forbidden")
BODY_ERRORS = ("invalid", "request_timeout", "length_required", "payload_too_large", "unsupported_media_type")
TEXT_ERRORS = ("malformed_json", "unknown_field")  # of a body that is parsed


@extend_schema_field({"oneOf": [{"type": "integer"}, {"type": "string"}]})
class VersionField(serializers.Field):
    """The version of a resource, as in its ETag."""


class Problem(serializers.Serializer):
    """Problem document (RFC 9457). `code` is stable. The members after `request_id` depend on the code."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.ChoiceField(choices=list(CODES))
    request_id = serializers.CharField()
    errors = serializers.DictField(  # type: ignore[assignment] # a field here, not the serializer's own attribute
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="Messages by field or parameter.",
    )
    reason = serializers.CharField(required=False)
    job_status = serializers.CharField(required=False)
    newer_job_id = serializers.CharField(required=False)
    expected_seq = serializers.IntegerField(required=False)
    scope = serializers.CharField(required=False)
    limit = serializers.IntegerField(required=False)
    limited_by = serializers.CharField(required=False)
    open_streams = serializers.IntegerField(required=False)
    version = VersionField(required=False, help_text="A number, or the text of an ETag.")
    max_timeout_seconds = serializers.IntegerField(required=False)
    error = serializers.DictField(
        required=False, help_text="Only ingest: `code`, `message` and `fields` of this error."
    )


def operation_docs(operation_id: str, *, codes: tuple[str, ...] = (), **kwargs: Any) -> Callable[[F], F]:
    """Return the decorator that documents an operation.

    Args:
        operation_id: Id of the operation.
        codes: Error codes besides those that every operation has.
        kwargs: Arguments of `extend_schema`.
    """

    def decorate(function: F) -> F:
        vars(function)["error_codes"] = codes
        return extend_schema(operation_id=operation_id, **kwargs)(function)

    return decorate


class ProblemSchema(AutoSchema):
    """Schema of one operation with its error responses."""

    def get_summary(self) -> str | None:
        """Return the first sentence of the operation's docstring, on one line."""
        summary: str | None = super().get_summary()
        if summary:
            return summary
        paragraph = " ".join(self.get_description().partition("\n\n")[0].split())
        return paragraph.partition(". ")[0].rstrip(".") or None

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies = super()._get_response_bodies(direction)
        for status, codes in sorted(self._codes_by_status().items()):
            if str(status) not in bodies:
                response, media_type = self.error_response(status, codes)
                bodies[str(status)] = self._get_response_for_code(response, str(status), [media_type])
        for status_text, body in bodies.items():
            body["headers"] = body.get("headers", {}) | _headers_of(status_text)
        return bodies

    def error_response(self, status: int, codes: list[str]) -> tuple[OpenApiResponse, str]:
        """Return the schema and media type of an error response. A protocol with its own errors overrides this."""
        return OpenApiResponse(Problem, description=f"{TITLES[status]}: {', '.join(codes)}."), MEDIA_TYPE

    def _codes_by_status(self) -> dict[int, list[str]]:
        by_status, codes = defaultdict(list), self.codes()
        for code in CODES:  # in the order of the table
            if code in codes:
                by_status[CODES[code].status].append(f"`{code}`")
        return by_status

    def codes(self) -> set[str]:
        """Return the error codes of this operation."""
        operation = getattr(self.view, getattr(self.view, "action", None) or self.method.lower(), None)
        special = getattr(operation, "error_codes", ("not_found", "conflict"))
        return {*COMMON_ERRORS, *self._caller_errors(), *self._body_errors(), *special}

    def _body_errors(self) -> tuple[str, ...]:
        parsers = self.view.parser_classes if self.method in {"POST", "PATCH", "PUT"} else ()
        if not parsers:
            return ()
        takes_bytes = all(parser.media_type == "application/octet-stream" for parser in parsers)
        return BODY_ERRORS if takes_bytes else (*BODY_ERRORS, *TEXT_ERRORS)

    def _caller_errors(self) -> tuple[str, ...]:
        if is_public(self.view):
            return ()
        return CREDENTIAL_ERRORS if is_for_workers(self.view) else (*CREDENTIAL_ERRORS, *CLIENT_ERRORS)

    def get_serializer_name(self, serializer: Any, direction: Literal["request", "response"]) -> str:
        """Return the published name of a component: `JobInput` is `JobRequest`, `JobOutput` is `Job`.

        `COMPONENT_SPLIT_REQUEST` appends `Request`. A response that repeats input, such as the specification of a job,
        has the component `SubmittedJob`.
        """
        name = str(super().get_serializer_name(serializer, direction))
        if name.endswith("Input"):
            stem = name.removesuffix("Input")
            return stem if direction == "request" else f"Submitted{stem}"
        if direction == "request":
            return name.removesuffix("Request")
        return name.removesuffix("Output") or name

    def _map_serializer_field(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Leave out that a value of any type may also be null."""
        mapped: dict[str, Any] = super()._map_serializer_field(*args, **options)
        if {} in mapped.get("oneOf", ()):
            del mapped["oneOf"]
        return mapped

    def _map_basic_serializer(self, serializer: Any, direction: Literal["request", "response"]) -> dict[str, Any]:
        """Allow no additional members in requests and responses."""
        mapped: dict[str, Any] = super()._map_basic_serializer(serializer, direction)
        return mapped | {"additionalProperties": False}


def merge_identical_paths(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Publish operations of paths that differ in the form of a parameter alone as one (postprocessing hook).

    OpenAPI has one path for them: `/api/v1/runs/{run_id}/rerun` is of document 001 for ids with a prefix, and of
    document 003 for whole numbers.
    """
    paths: dict[str, Any] = {}
    first: dict[str, str] = {}
    for path, operations in result["paths"].items():
        kept = first.setdefault(re.sub(r"{[^}]*}", "{}", path), path)
        if kept == path:
            paths[path] = operations
            continue
        names = dict(zip(re.findall(r"{([^}]*)}", path), re.findall(r"{([^}]*)}", kept), strict=True))
        for method, operation in operations.items():
            for parameter in operation.get("parameters", []):
                parameter["name"] = names.get(parameter["name"], parameter["name"])
            present = paths[kept].get(method)
            paths[kept][method] = operation if present is None else _merged_operation(present, operation)
    return result | {"paths": paths}


def _merged_operation(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return an operation that takes and returns what either of two does."""
    parameters = {parameter["name"]: parameter for parameter in one["parameters"]}
    for parameter in other["parameters"]:
        name, present = parameter["name"], parameters.get(parameter["name"])
        parameters[name] = parameter if present is None else present | {"schema": _either(present, parameter)}
    in_both = {parameter["name"] for parameter in one["parameters"]} & {item["name"] for item in other["parameters"]}
    responses = dict(one["responses"])
    for status, response in other["responses"].items():
        responses[status] = _merged_response(responses[status], response) if status in responses else response
    merged = one | {
        "description": f"{one['description']} Or: {other['description']}",
        "tags": sorted({*one["tags"], *other["tags"]}),
        "security": one["security"] + [scheme for scheme in other["security"] if scheme not in one["security"]],
        "parameters": [
            item if item["name"] in in_both else {key: value for key, value in item.items() if key != "required"}
            for item in parameters.values()
        ],
        "responses": responses,
    }
    if body := one.get("requestBody") or other.get("requestBody"):
        is_in_both = "requestBody" in one and "requestBody" in other
        merged["requestBody"] = body | {"required": is_in_both and body.get("required", False)}
    return merged


def _merged_response(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    content = dict(one.get("content", {}))
    for media_type, found in other.get("content", {}).items():
        present = content.get(media_type)
        content[media_type] = found if present is None else present | {"schema": _either(present, found)}
    description = "; ".join(filter(None, dict.fromkeys((one["description"], other["description"]))))
    return one | {"description": description, "headers": one["headers"] | other["headers"], "content": content}


def _either(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    schemas = [one["schema"], other["schema"]]
    return schemas[0] if schemas[0] == schemas[1] else {"oneOf": schemas}


def _headers_of(status: str) -> dict[str, Any]:
    text = {"schema": {"type": "string"}}
    seconds = {"schema": {"type": "integer", "minimum": 1}}
    headers: dict[str, Any] = {
        "X-Request-Id": text | {"description": "The id in the request, or a new one.", "required": True}
    }
    if status in {"429", "503"}:
        headers["Retry-After"] = seconds | {"description": "Seconds.", "required": True}
    if status == "401":
        headers["WWW-Authenticate"] = text | {"required": True}
    return headers


def is_for_workers(view: Any) -> bool:
    """Return whether only workers may call the view."""
    return any(isinstance(permission, IsWorker) for permission in view.get_permissions())


def is_public(view: Any) -> bool:
    """Return whether everybody may call the view, without credentials of a person or program."""
    return not view.authentication_classes and AllowAny in view.permission_classes


class BearerScheme(OpenApiAuthenticationExtension):
    """Bearer tokens of clients and of workers."""

    target_class = "orchestrator.http.auth.authentication.BearerToken"
    name = ["apiToken", "workerToken"]

    def get_security_definition(self, auto_schema: AutoSchema) -> list[dict[str, str]]:  # noqa: ARG002 signature of the base
        return [
            {
                "type": "http",
                "scheme": "bearer",
                "description": "Token of a client (`rto_api_…`) with the scopes that it was created with.",
            },
            {
                "type": "http",
                "scheme": "bearer",
                "description": "Token of a worker (`rto_worker_…`), for its own leases.",
            },
        ]

    def get_security_requirement(self, auto_schema: AutoSchema) -> dict[str, list[Any]]:
        return {"workerToken" if is_for_workers(auto_schema.view) else "apiToken": []}


class CertificateScheme(OpenApiAuthenticationExtension):
    """Client certificate of a worker, forwarded by the operator's proxy."""

    target_class = "orchestrator.http.auth.client_certificates.ProxyClientCertAuth"
    name = "workerCertificate"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:  # noqa: ARG002 signature of the base
        about = "The proxy checks the certificate and forwards its subject in the header that CERTIFICATE_HEADER names."
        return {"type": "mutualTLS", "description": about}


class SessionScheme(OpenApiAuthenticationExtension):
    """Session of a browser. It is not accepted for operations of workers."""

    target_class = "orchestrator.http.auth.authentication.BrowserSession"
    name = "session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:  # noqa: ARG002 signature of the base
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}

    def get_security_requirement(self, auto_schema: AutoSchema) -> Any:
        return None if is_for_workers(auto_schema.view) else {"session": []}
