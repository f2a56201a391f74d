"""Responses of identity tokens. The classes are schema only."""

from rest_framework import serializers


class IdentityTokenOutput(serializers.Serializer):
    """An identity token."""

    value = serializers.CharField(help_text="A JSON Web Token, signed with RS256 and valid for ten minutes.")


class KeySetOutput(serializers.Serializer):
    """The keys that verify identity tokens (RFC 7517)."""

    keys = serializers.ListField(child=serializers.DictField(child=serializers.CharField()))


class DiscoveryOutput(serializers.Serializer):
    """OpenID Connect Discovery."""

    issuer = serializers.CharField()
    jwks_uri = serializers.CharField()
    subject_types_supported = serializers.ListField(child=serializers.CharField())
    response_types_supported = serializers.ListField(child=serializers.CharField())
    claims_supported = serializers.ListField(child=serializers.CharField())
    id_token_signing_alg_values_supported = serializers.ListField(child=serializers.CharField())
    scopes_supported = serializers.ListField(child=serializers.CharField())
