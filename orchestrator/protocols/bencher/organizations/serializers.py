"""Requests and responses of organizations. `wire.py` builds the responses."""

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from orchestrator.protocols.bencher.fields import LenientSerializer


class ClaimOrganizationInput(LenientSerializer):
    """POST /v0/organizations/{organization}/claim. All members are ignored."""


@extend_schema_serializer(component_name="BencherOrganization")
class OrganizationDocument(serializers.Serializer):
    """An organization."""

    uuid = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    created = serializers.DateTimeField()
    modified = serializers.DateTimeField()
    claimed = serializers.DateTimeField(allow_null=True)
