"""Requests of `/api/limits`. The responses are sources."""

from leases.models.limits import MAX_ACTIVE, MAX_PER_HOUR
from orchestrator.http.api.fields import StrictCharField, StrictIntegerField
from orchestrator.protocols.stella.serializers import EndField, ReasonFields

MAX_ID_LENGTH = 130


class ResumeSourceInput(ReasonFields):
    """POST /api/limits/resume."""

    sourceId = StrictCharField(max_length=MAX_ID_LENGTH, help_text="The `sourceId` in `/api/sources`.")


class PauseSourceInput(ResumeSourceInput):
    """POST /api/limits/pause."""

    until = EndField(
        required=False, default=None, allow_null=True, help_text="When the pause ends. Null: when it is resumed."
    )


class ThrottleSourceInput(ResumeSourceInput):
    """POST /api/limits/throttle."""

    maxPerHour = StrictIntegerField(
        min_value=1, max_value=MAX_PER_HOUR, allow_null=True, help_text="Starts per hour. Null removes the throttle."
    )
    burst = StrictIntegerField(
        required=False, default=1, min_value=1, max_value=MAX_ACTIVE, help_text="Starts allowed at once."
    )
    until = EndField(
        required=False, default=None, allow_null=True, help_text="When the throttle ends. Null: when it is removed."
    )
