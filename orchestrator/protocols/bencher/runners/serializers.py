"""Requests and responses of `/v0/runners`. `wire.py` builds the responses."""

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from orchestrator.http.api.fields import StrictBooleanField, StrictCharField
from orchestrator.protocols.bencher.fields import LenientSerializer, NameField, SlugTextField
from orchestrator.services.runners import MAX_SLUG_LENGTH


class NewRunnerInput(LenientSerializer):
    """POST /v0/runners."""

    name = NameField()
    slug = SlugTextField(
        required=False, allow_null=True, max_length=MAX_SLUG_LENGTH, help_text="Default: the slug of the name."
    )


class RunnerChangeInput(LenientSerializer):
    """PATCH /v0/runners/{runner}. A field that is absent or null changes nothing."""

    name = NameField(required=False, allow_null=True)
    slug = SlugTextField(required=False, allow_null=True, max_length=MAX_SLUG_LENGTH)
    archived = StrictBooleanField(required=False, allow_null=True)


class RunnerSpecInput(LenientSerializer):
    """POST /v0/runners/{runner}/specs."""

    spec = StrictCharField(max_length=64, help_text="UUID or slug.")


@extend_schema_serializer(component_name="Runner")
class RunnerDocument(serializers.Serializer):
    """A runner."""

    uuid = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    specs = serializers.ListField(child=serializers.UUIDField())
    archived = serializers.DateTimeField(allow_null=True)
    last_heartbeat = serializers.DateTimeField(allow_null=True, help_text="Last authenticated request.")
    created = serializers.DateTimeField()
    modified = serializers.DateTimeField()


@extend_schema_serializer(component_name="RunnerKey")
class RunnerKeyDocument(serializers.Serializer):
    """A new key of a runner. It is returned once."""

    uuid = serializers.UUIDField()
    key = serializers.CharField()
    token = serializers.CharField(help_text="The same, for older clients.")
