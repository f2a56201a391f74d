"""OpenAPI of `/v0/server`."""

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers

from orchestrator.http.api.openapi import operation_docs


@extend_schema_serializer(component_name="BencherServerVersion")
class ServerVersionDocument(serializers.Serializer):
    """The version of the API."""

    version = serializers.CharField()


@extend_schema_serializer(component_name="BencherConsole")
class ConsoleDocument(serializers.Serializer):
    """The address of the web pages."""

    url = serializers.URLField()


GET_VERSION_DOCS = operation_docs(
    "get_server_version",
    responses={200: ServerVersionDocument},
    auth=[{}],
    examples=[OpenApiExample("version", {"version": "0.6.12"}, response_only=True)],
)
GET_CONSOLE_DOCS = operation_docs(
    "get_console_config",
    responses={200: ConsoleDocument},
    auth=[{}],
    examples=[OpenApiExample("console", {"url": "https://orchestrator.example/"}, response_only=True)],
)
