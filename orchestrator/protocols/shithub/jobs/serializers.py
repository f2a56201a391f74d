"""Requests and responses of the calls about a job. The classes of responses are schema only."""

import base64
import binascii
from datetime import datetime
from typing import Any, Final

from rest_framework import serializers

from orchestrator.artifacts.operations import validate_workflow_name
from orchestrator.core.datetimes import INVALID_TIMESTAMP, parse_timestamp
from orchestrator.http.api.fields import StrictCharField, StrictIntegerField, StrictSerializer
from runtime_jobs.models.artifacts import MAX_OBJECT_BYTES
from runtime_jobs.states import Conclusion, StepStatus

MAX_CHUNK_BYTES: Final = 512 << 10
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


class StatusInput(StrictSerializer):
    """A status of a job or step. An empty member counts as absent."""

    status = StrictCharField(allow_blank=True, help_text="For a job: running, completed or cancelled.")
    conclusion = StrictCharField(required=False, allow_null=True, allow_blank=True, default=None)
    started_at = StrictCharField(
        required=False, allow_null=True, allow_blank=True, default=None, help_text="RFC 3339 with an offset."
    )
    completed_at = StrictCharField(
        required=False, allow_null=True, allow_blank=True, default=None, help_text="RFC 3339 with an offset."
    )

    def validate_conclusion(self, value: str | None) -> Conclusion | None:
        if not value:
            return None
        if value not in Conclusion.values:
            raise serializers.ValidationError(f"Must be one of: {', '.join(Conclusion.values)}.")
        return Conclusion(value)

    def validate_started_at(self, value: str | None) -> datetime | None:
        return _timestamp(value)

    def validate_completed_at(self, value: str | None) -> datetime | None:
        return _timestamp(value)


def _timestamp(text: str | None) -> datetime | None:
    if not text:
        return None
    timestamp = parse_timestamp(text)
    if timestamp is None:
        raise serializers.ValidationError(INVALID_TIMESTAMP)
    return timestamp


class LogInput(StrictSerializer):
    """A chunk of the log of a step. `chunk`: base64 in the standard alphabet, with or without padding."""

    seq = StrictIntegerField(min_value=0, max_value=MAX_INT32)
    chunk = StrictCharField(allow_blank=True)
    step_id = StrictIntegerField(
        required=False, allow_null=True, default=None, max_value=MAX_INT64, help_text="Absent or 0: the first step."
    )

    def validate_chunk(self, text: str) -> bytes:
        """Return the bytes of a chunk."""
        compact = text.replace("\r", "").replace("\n", "")
        try:
            data = base64.b64decode(_padded(compact), validate=True)
        except (binascii.Error, ValueError):
            raise serializers.ValidationError("Must be base64.") from None
        if not 0 < len(data) <= MAX_CHUNK_BYTES:
            raise serializers.ValidationError(f"Must have 1 to {MAX_CHUNK_BYTES} bytes, and has {len(data)}.")
        return data


class ArtifactUploadInput(StrictSerializer):
    """An artifact that a runner announces (contract 2.6). Blanks around the name do not count."""

    name = StrictCharField(help_text="1 to 100 letters, digits, dots, hyphens and underscores; unique for the run.")
    size_bytes = StrictIntegerField(min_value=0, max_value=MAX_OBJECT_BYTES)

    def validate_name(self, value: str) -> str:
        name = value.strip()
        if error := validate_workflow_name(name):
            raise serializers.ValidationError(error)
        return name


def _padded(text: str) -> str:
    return text if text.endswith("=") else text + "=" * (-len(text) % 4)


def status_of(data: dict[str, Any], allowed: tuple[StepStatus, ...]) -> tuple[StepStatus, Conclusion | None]:
    """Return the status and the conclusion in a validated body.

    Args:
        data: The body.
        allowed: The statuses that the call accepts.

    Raises:
        ValidationError: The status is not allowed, or does not fit the conclusion.
    """
    text = data["status"].strip()
    if text not in allowed:
        raise serializers.ValidationError({"status": [f"Must be one of: {', '.join(allowed)}."]})
    status, conclusion = StepStatus(text), data["conclusion"]
    if status == StepStatus.RUNNING and conclusion is not None:
        raise serializers.ValidationError({"conclusion": ["Must be absent for the status running."]})
    if status == StepStatus.COMPLETED and conclusion is None:
        raise serializers.ValidationError({"conclusion": ["Required for the status completed."]})
    return status, conclusion or _DEFAULTS.get(status)


_DEFAULTS: Final = {StepStatus.CANCELLED: Conclusion.CANCELLED, StepStatus.SKIPPED: Conclusion.SKIPPED}


class NextTokenDocument(serializers.Serializer):
    """The members that hand out the next token of a chain."""

    next_token = serializers.CharField()
    next_token_expires_at = serializers.DateTimeField()


class JobStatusDocument(serializers.Serializer):
    """The status of a job. The next token is absent once the job has ended."""

    status = serializers.ChoiceField(choices=StepStatus.choices)
    conclusion = serializers.ChoiceField(choices=Conclusion.choices, allow_null=True)
    run_status = serializers.CharField(required=False, help_text="Present if the report completed the run.")
    run_conclusion = serializers.ChoiceField(choices=Conclusion.choices, required=False)
    next_token = serializers.CharField(required=False)
    next_token_expires_at = serializers.DateTimeField(required=False)


class StepStatusDocument(NextTokenDocument):
    """The status of a step."""

    status = serializers.ChoiceField(choices=StepStatus.choices)
    conclusion = serializers.ChoiceField(choices=Conclusion.choices, allow_null=True)


class LogDocument(NextTokenDocument):
    """The response to a chunk."""

    accepted = serializers.BooleanField()


class ArtifactUploadDocument(NextTokenDocument):
    """The address of an upload. The artifact is visible when its whole content was sent there."""

    artifact_id = serializers.IntegerField()
    upload_url = serializers.CharField()


class CancelCheckDocument(NextTokenDocument):
    """Whether a cancel of the job was requested."""

    cancelled = serializers.BooleanField()


class NewChainDocument(serializers.Serializer):
    """A new chain of tokens."""

    token = serializers.CharField()
    expires_at = serializers.DateTimeField()
    checkout_token = serializers.CharField()
