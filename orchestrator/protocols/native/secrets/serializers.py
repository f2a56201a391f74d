"""Requests and responses of `/v1/secrets` and `/v1/variables`. `wire.py` builds the responses."""

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from orchestrator.http.api.fields import StrictCharField, StrictSerializer
from orchestrator.protocols.native.serializers import SLUG, ActorOutput
from orchestrator.secrets.operations import validate_value, validate_variable

REPOSITORY = "[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}"


class ScopeInput(StrictSerializer):
    """The organization, or one of its repositories."""

    org_slug = StrictCharField(pattern=SLUG)
    repository = StrictCharField(
        pattern=REPOSITORY,
        required=False,
        default=None,
        allow_null=True,
        help_text="`owner/name`. Null: for all repositories of the organization.",
    )


@extend_schema_serializer(component_name="Secret")
class SecretInput(ScopeInput):
    """PUT /v1/secrets/{name}."""

    value = StrictCharField(check=validate_value, help_text="1 byte to 48 KiB in UTF-8. It is never returned.")


@extend_schema_serializer(component_name="Variable")
class VariableInput(ScopeInput):
    """PUT /v1/variables/{name}."""

    value = StrictCharField(check=validate_variable, help_text="1 byte to 48 KiB in UTF-8, without `${{`.")


class SecretOutput(serializers.Serializer):
    """A secret without its value."""

    name = serializers.CharField()
    org_slug = serializers.CharField()
    repository = serializers.CharField(allow_null=True, help_text="Null: for all repositories of the organization.")
    updated_by = ActorOutput(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class VariableOutput(SecretOutput):
    """A variable with its value."""

    value = serializers.CharField()
