"""Fields of requests, and serializers that ignore unknown members and treat null as absent."""

from typing import Any

from rest_framework import serializers

from orchestrator.http.api.fields import StrictCharField
from runtime_jobs.resource_names import MAX_NAME_BYTES, MAX_SLUG_LENGTH, validate_resource_name, validate_slug


class NameField(StrictCharField):
    """The name of a resource: at most 64 bytes, without blanks at its ends, not unique."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(check=validate_resource_name, max_length=MAX_NAME_BYTES, **kwargs)


class SlugTextField(StrictCharField):
    """The slug of a resource, of at most 64 characters by default."""

    def __init__(self, *, max_length: int = MAX_SLUG_LENGTH, **kwargs: Any) -> None:
        super().__init__(check=validate_slug, max_length=max_length, **kwargs)


class LenientSerializer(serializers.Serializer):
    """Ignores unknown members. A member that is null counts as absent, if its field is optional."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        validated: dict[str, Any] = super().to_internal_value(data)
        return {name: value for name, value in validated.items() if value is not None}
