"""Requests and responses of `/v0/specs`. `wire.py` builds the responses."""

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from orchestrator.http.api.fields import StrictBooleanField, StrictChoiceField, StrictIntegerField
from orchestrator.protocols.bencher.fields import LenientSerializer, NameField, SlugTextField
from workers.registry.models import SpecArchitecture, SpecOS, SpecSandbox

MAX_CPU = 2**31 - 1
MAX_BYTES = 2**63 - 1


class NewSpecInput(LenientSerializer):
    """POST /v0/specs."""

    name = NameField()
    slug = SlugTextField(required=False, allow_null=True, help_text="Default: the slug of the name.")
    os = StrictChoiceField(choices=SpecOS.values)
    architecture = StrictChoiceField(choices=SpecArchitecture.values)
    sandbox = StrictChoiceField(choices=SpecSandbox.values, required=False, allow_null=True)
    cpu = StrictIntegerField(min_value=1, max_value=MAX_CPU)
    memory = StrictIntegerField(min_value=1, max_value=MAX_BYTES, help_text="Bytes.")
    disk = StrictIntegerField(min_value=1, max_value=MAX_BYTES, help_text="Bytes.")
    network = StrictBooleanField(required=False, allow_null=True, help_text="Default: false.")
    fallback = StrictBooleanField(
        required=False, allow_null=True, help_text="Whether jobs that name no spec get this one. Default: false."
    )

    def hardware(self) -> dict[str, Any]:
        """Return the values that never change."""
        values = self.validated_data
        names = ("os", "architecture", "cpu", "memory", "disk")
        return {name: values[name] for name in names} | {
            "sandbox": values.get("sandbox"),
            "network": values.get("network", False),
        }


class SpecChangeInput(LenientSerializer):
    """PATCH /v0/specs/{spec}. A field that is absent or null changes nothing."""

    name = NameField(required=False, allow_null=True)
    slug = SlugTextField(required=False, allow_null=True)
    fallback = StrictBooleanField(required=False, allow_null=True)
    archived = StrictBooleanField(
        required=False, allow_null=True, help_text="True also ends the fallback. False does not restore it."
    )


@extend_schema_serializer(component_name="Spec")
class SpecDocument(serializers.Serializer):
    """A hardware spec."""

    uuid = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    os = serializers.ChoiceField(choices=SpecOS.values)
    architecture = serializers.ChoiceField(choices=SpecArchitecture.values)
    sandbox = serializers.ChoiceField(choices=SpecSandbox.values, allow_null=True)
    cpu = serializers.IntegerField()
    memory = serializers.IntegerField(help_text="Bytes.")
    disk = serializers.IntegerField(help_text="Bytes.")
    network = serializers.BooleanField()
    fallback = serializers.DateTimeField(allow_null=True, help_text="Since when the spec is the fallback.")
    created = serializers.DateTimeField()
    modified = serializers.DateTimeField()
    archived = serializers.DateTimeField(allow_null=True)
