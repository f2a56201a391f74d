"""Serializers that several resources of the native API share."""

from typing import Any

from rest_framework import serializers

from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictDecimalField,
    StrictIntegerField,
    StrictSerializer,
)

SLUG = "[a-z0-9][a-z0-9-]{0,62}"
ACTOR_KINDS = ["client", "operator", "worker", "clock", "core"]


class EmptyBody(StrictSerializer):
    """A body without fields."""


class ProgressInput(StrictSerializer):
    """Progress of a job."""

    percent = StrictDecimalField(required=False, min_value=0, max_value=100)
    current_step = SanitizedTextField(required=False, allow_blank=True, max_length=200)
    step_index = StrictIntegerField(required=False, min_value=0, max_value=100_000)
    message = SanitizedTextField(required=False, allow_blank=True, max_length=1000)


class ActorOutput(serializers.Serializer):
    """The client, operator, worker or server process that caused a change."""

    kind = serializers.ChoiceField(choices=ACTOR_KINDS)
    id = serializers.CharField()


class RawEntry(serializers.Field):
    """One object in the list of a batch call.

    The serializer of the single call parses it later, so that an invalid entry does not fail the whole call.
    """

    default_error_messages = {"invalid": "Each entry must be a JSON object."}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail("invalid")
        return data
