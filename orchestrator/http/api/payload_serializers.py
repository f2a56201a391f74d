"""Serializers of payloads, cursors, and of what workers report about them. All protocols share them."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.fields import empty

from orchestrator.http.api.fields import StrictCharField, StrictIntegerField, StrictSerializer
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.specs.payload import (
    CURSOR_NAME,
    MAX_CURSOR_LENGTH,
    MAX_CURSORS,
    MAX_PAYLOAD_BYTES,
    PayloadSpec,
    validate_cursors,
    validate_payload,
)

MAX_TIMEOUT_SECONDS = 2**31 - 1
MAX_TOOLS = 64
MAX_TOOL_NAME = 100
VERDICT = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
DIGEST = "sha256:[0-9a-f]{64}"


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {},
        "description": f"At most {MAX_PAYLOAD_BYTES} bytes in the canonical form of RFC 8785.",
    }
)
class PayloadObjectField(serializers.Field):
    """A JSON object of at most `MAX_PAYLOAD_BYTES`, of numbers that a double can represent."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError("Must be a JSON object.")
        if problem := validate_payload(data):
            raise serializers.ValidationError(problem)
        return data

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": MAX_CURSOR_LENGTH},
        "description": f"At most {MAX_CURSORS} opaque positions, by names that match `{CURSOR_NAME.pattern}`.",
    }
)
class CursorsField(serializers.DictField):
    """The position in each feed from which a job reads, or to which it has read."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictCharField(max_length=MAX_CURSOR_LENGTH, check=wrong_label), **kwargs)

    def run_validation(self, data: Any = empty) -> Any:
        """Check the number and the names. A compiled serializer calls this method, and not `to_internal_value`."""
        if isinstance(data, dict) and (problem := validate_cursors(data)):
            raise serializers.ValidationError(problem)
        return super().run_validation(data)


class ToolMapField(serializers.DictField):
    """Versions or digests of tools, by the name of the tool."""

    def __init__(self, *, child: StrictCharField, **kwargs: Any) -> None:
        super().__init__(child=child, **kwargs)

    def run_validation(self, data: Any = empty) -> Any:
        """Check the number and the names, as in `CursorsField`."""
        if isinstance(data, dict) and len(data) > MAX_TOOLS:
            raise serializers.ValidationError(f"There are {len(data)} tools; at most {MAX_TOOLS} are allowed.")
        if isinstance(data, dict) and any(len(name) > MAX_TOOL_NAME or wrong_label(name) for name in data):
            raise serializers.ValidationError(f"Names of tools must have at most {MAX_TOOL_NAME} printable characters.")
        return super().run_validation(data)


class EnvironmentInput(StrictSerializer):
    """The engine and the tools that executed a job."""

    engine = StrictCharField(max_length=100, required=False, check=wrong_label)
    versions = ToolMapField(child=StrictCharField(max_length=200, check=wrong_label), required=False)
    digests = ToolMapField(child=StrictCharField(pattern=DIGEST), required=False)


class PayloadSpecInput(StrictSerializer):
    """Spec of a job with a payload."""

    payload = PayloadObjectField()
    cursors = CursorsField(required=False, default=dict)
    timeout_seconds = StrictIntegerField(min_value=1, max_value=MAX_TIMEOUT_SECONDS)


class LeasedPayloadOutput(PayloadSpecInput):
    """Payload of a leased job, its digest, and the sandbox that it requires."""

    run_id = serializers.UUIDField(help_text="The id of the job below `/api/jobs` and `/runs`.")
    payload_digest = serializers.CharField(help_text="`sha256:` and the SHA-256 of the payload's canonical form.")
    sealed = serializers.BooleanField(help_text="Of a sealed replay: the worker executes the job without network.")
    least_isolation = serializers.CharField()
    egress = serializers.ListField(child=serializers.CharField())
    trace = serializers.ChoiceField(choices=JobTrace.choices)
    plan = serializers.DictField(
        required=False, help_text="Only of pack runs, as the next three: the plan of the pack, with all members."
    )
    plan_hash = serializers.CharField(required=False, help_text="That of the version of the pack.")
    inputs = serializers.DictField(required=False, help_text="Those of the payload, else the defaults of the plan.")
    allow_network = serializers.BooleanField(required=False)


def build_payload_spec(job_type: str, validated: dict[str, Any]) -> PayloadSpec:
    """Return the spec for the validated data of `PayloadSpecInput`."""
    return PayloadSpec(job_type, validated["payload"], validated["timeout_seconds"], validated["cursors"])
