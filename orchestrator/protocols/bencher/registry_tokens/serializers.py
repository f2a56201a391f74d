"""Requests and responses of `/v0/auth/oci/token`."""

from rest_framework import serializers


class RegistryTokenRequest(serializers.Serializer):
    """Request for a token by OAuth 2."""

    grant_type = serializers.CharField(help_text="`password`.")
    username = serializers.CharField(required=False, help_text="Any text.")
    password = serializers.CharField(required=False, help_text="As with Basic authentication.")
    service = serializers.CharField(required=False)
    client_id = serializers.CharField(required=False)
    scope = serializers.CharField(required=False, help_text="Scopes with blanks between them.")


class RegistryTokenDocument(serializers.Serializer):
    """Token of the image registry."""

    token = serializers.CharField()
    access_token = serializers.CharField(help_text="The same token, for clients of OAuth 2.")
    expires_in = serializers.IntegerField(help_text="Seconds.")
    issued_at = serializers.CharField()
    scope = serializers.CharField(help_text="What the token permits.")
