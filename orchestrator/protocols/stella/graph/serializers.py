"""Requests and responses of `POST /api/graphql`. `execution.py` builds the responses; their classes are schema only."""

from rest_framework import serializers

from orchestrator.http.api.fields import StrictCharField, StrictSerializer
from orchestrator.protocols.stella.graph.limits import MAX_CHARACTERS

MAX_NAME_LENGTH = 200


class GraphQLInput(StrictSerializer):
    """POST /api/graphql: one document with its variables."""

    query = StrictCharField(help_text=f"The document, at most {MAX_CHARACTERS} characters.")
    variables = serializers.DictField(required=False, default=dict, allow_null=True)
    operationName = StrictCharField(
        required=False, default=None, allow_null=True, allow_blank=True, max_length=MAX_NAME_LENGTH
    )
    extensions = serializers.DictField(required=False, default=dict, allow_null=True, help_text="Accepted and ignored.")


class GraphQLErrorOutput(serializers.Serializer):
    """An error of a document or of one of its fields."""

    message = serializers.CharField()
    locations = serializers.ListField(child=serializers.DictField(child=serializers.IntegerField()), required=False)
    path = serializers.ListField(child=serializers.JSONField(), required=False)
    extensions = serializers.DictField(help_text="`code` and the members of the problem document of the REST API.")


class GraphQLResponseOutput(serializers.Serializer):
    """A response of GraphQL. `data` is missing if the document was not executed."""

    data = serializers.DictField(required=False)  # type: ignore[assignment] # a field, not DRF's attribute
    errors = GraphQLErrorOutput(many=True, required=False)  # type: ignore[assignment] # a field, not DRF's attribute
