"""Responses of `/v1/keys`. The classes are schema only."""

from rest_framework import serializers

from orchestrator.evidence.public_keys import ALGORITHM


class SigningKeyOutput(serializers.Serializer):
    """A key that signs evidence, or has signed it."""

    key_id = serializers.CharField(help_text="The id that securesystemslib computes from the key.")
    algorithm = serializers.ChoiceField(choices=[ALGORITHM])
    public_key = serializers.CharField(help_text="The public key as PEM.")
    is_retired = serializers.BooleanField(help_text="A retired key signs nothing any more. Its signatures stay valid.")
    created_at = serializers.DateTimeField()
    retired_at = serializers.DateTimeField(allow_null=True)


class SigningKeySetOutput(serializers.Serializer):
    """All keys of the installation, the newest one first."""

    keys = SigningKeyOutput(many=True)
