"""Requests and responses of `/v1/packs`."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from orchestrator.http.api.fields import StrictBooleanField, StrictCharField, StrictSerializer
from orchestrator.protocols.native.serializers import SLUG, ActorOutput
from runtime_jobs import validators
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.specs import packs
from runtime_jobs.specs import steps as steps_rules

MAX_DESCRIPTION_LENGTH = 1000
INPUT_VALUE = {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]}


@extend_schema_field(INPUT_VALUE)
class InputValueField(serializers.Field):
    """The value of an input: a text, a whole number or a boolean."""

    def to_internal_value(self, data: Any) -> Any:
        if problem := packs.value_error(data):
            raise serializers.ValidationError(problem)
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class PackInputInput(StrictSerializer):
    """An input that a plan declares. The steps find it in the variable `INPUT_` with its name in capitals."""

    required = StrictBooleanField(required=False)  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    default = InputValueField(required=False)
    description = StrictCharField(
        required=False, allow_blank=True, max_length=MAX_DESCRIPTION_LENGTH, check=wrong_label
    )


class PackArtifactInput(StrictSerializer):
    """Pattern of the files that are artifacts of a run."""

    type = StrictCharField(required=False, pattern=steps_rules.KIND.pattern, help_text="Default: `file`.")
    path_glob = StrictCharField(max_length=1024, check=steps_rules.validate_pattern)


class PackPlanInput(StrictSerializer):
    """The plan of a pack: steps, with the inputs and artifacts of a run. Members that are not sent stay unset."""

    name = StrictCharField(required=False, max_length=100, check=wrong_label)
    steps = serializers.ListField(
        child=StrictCharField(max_length=steps_rules.MAX_STEP_BYTES, check=steps_rules.validate_step),
        allow_empty=False,
        max_length=steps_rules.MAX_STEPS,
        help_text="Command lines for `sh -c`, executed in order until one fails.",
    )
    working_directory = StrictCharField(required=False, max_length=1024, check=validators.validate_directory)
    environment = serializers.DictField(
        child=StrictCharField(allow_blank=True, max_length=steps_rules.MAX_VALUE_LENGTH), required=False
    )
    inputs = serializers.DictField(child=PackInputInput(), required=False)
    artifacts = serializers.ListField(child=PackArtifactInput(), required=False, max_length=steps_rules.MAX_PATTERNS)
    allow_network = StrictBooleanField(required=False)


class PackVersionInput(StrictSerializer):
    """PUT /v1/packs/{pack_id}/versions/{version}."""

    org_slug = StrictCharField(
        pattern=SLUG, required=False, default=None, allow_null=True, help_text="Default: that of the token."
    )
    plan = PackPlanInput()


class ListedPackOutput(serializers.Serializer):
    """A version of a pack, without its plan."""

    org_slug = serializers.CharField()
    pack_id = serializers.CharField()
    version = serializers.CharField()
    plan_hash = serializers.CharField(help_text="`sha256:` and the SHA-256 of the plan's canonical form (RFC 8785).")
    created_by = ActorOutput()
    created_at = serializers.DateTimeField()


class PackVersionOutput(ListedPackOutput):
    """A version of a pack."""

    plan = PackPlanInput(help_text="As it was registered.")
