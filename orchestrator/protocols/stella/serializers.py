"""Serializers that several resources of this API share."""

from datetime import datetime
from typing import Any

from rest_framework import serializers

from leases.scheduling.limits import ALL_TYPES
from orchestrator.core.datetimes import INVALID_TIMESTAMP, parse_timestamp
from orchestrator.http.api.fields import SanitizedTextField, StrictSerializer
from runtime_jobs.specs import JOB_TYPES

MAX_REASON_LENGTH = 500
JOB_TYPES_OR_ALL = [ALL_TYPES, *JOB_TYPES]


class ReasonFields(StrictSerializer):
    """Reason of a change. The document has none, so it may be missing."""

    reason = SanitizedTextField(
        required=False,
        default="",
        allow_blank=True,
        max_length=MAX_REASON_LENGTH,
        help_text="Recorded in the audit log, and displayed to those whose jobs wait.",
    )


class EndField(serializers.DateTimeField):
    """RFC 3339 timestamp with an offset. The service checks by the server's clock that it is in the future."""

    def to_internal_value(self, data: Any) -> datetime:
        timestamp = parse_timestamp(data)
        if timestamp is None:
            raise serializers.ValidationError(INVALID_TIMESTAMP)
        return timestamp


class SetByOutput(serializers.Serializer):
    """The client, operator or server process that caused a change."""

    kind = serializers.ChoiceField(choices=["client", "operator", "worker", "clock", "core"])
    id = serializers.CharField()
