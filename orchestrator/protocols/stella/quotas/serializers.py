"""Requests and responses of `/api/quotas`. `wire.py` builds the responses; their classes are schema only."""

from typing import Any

from rest_framework import serializers

from leases.models.limits import MAX_ACTIVE, MAX_PER_HOUR
from orchestrator.http.api.fields import StrictBooleanField, StrictIntegerField, StrictSerializer
from orchestrator.protocols.stella.serializers import JOB_TYPES_OR_ALL, ReasonFields, SetByOutput

# Members of a request, and the names of `orchestrator.limits.quotas.FIELDS`.
CHANGES = {"maxActive": "max_active", "maxPerHour": "per_hour", "burst": "burst"}

# --- requests ---------------------------------------------------------------------------------------------------------


class EmergencyQuotaInput(StrictSerializer):
    """Limit of the jobs that skip the queue."""

    maxActive = StrictIntegerField(min_value=0, max_value=MAX_ACTIVE)
    skipQueue = StrictBooleanField(required=False)

    def validate_skipQueue(self, value: bool) -> bool:  # noqa: N802 by the name of the field
        if not value:
            raise serializers.ValidationError("Emergency jobs always skip the queue: send true, or omit the member.")
        return value


class QuotaPriorityInput(StrictSerializer):
    """Limits by priority. Only `emergency` has one."""

    emergency = EmergencyQuotaInput(required=False, allow_null=True)


class QuotaPatchInput(ReasonFields):
    """PATCH /api/quotas/{id}: a merge patch. A member that is missing stays as it is; null removes the limit."""

    maxActive = StrictIntegerField(
        required=False, allow_null=True, min_value=0, max_value=MAX_ACTIVE, help_text="Running jobs."
    )
    maxPerHour = StrictIntegerField(
        required=False, allow_null=True, min_value=1, max_value=MAX_PER_HOUR, help_text="Starts per hour."
    )
    burst = StrictIntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=MAX_ACTIVE,
        help_text="Starts allowed at once after an idle period; 1 unless it is set. Only with `maxPerHour`.",
    )
    priority = QuotaPriorityInput(
        required=False, allow_null=True, help_text="Only operators may change it, and only of the job type `*`."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the changes under the names of the service.

        Raises:
            ValidationError: There is no change.
        """
        changes = {CHANGES[name]: value for name, value in attrs.items() if name in CHANGES}
        priority = attrs.get("priority", {})
        if priority is None or "emergency" in priority:
            emergency = priority and priority["emergency"]
            changes["emergency_max_active"] = emergency["maxActive"] if emergency else None
        if not changes:
            names = ", ".join([*CHANGES, "priority.emergency"])
            raise serializers.ValidationError({"body": f"At least one of {names} is required."})
        return {"changes": changes, "reason": attrs["reason"]}


# --- responses --------------------------------------------------------------------------------------------------------


class EmergencyQuotaOutput(serializers.Serializer):
    """Limit of the jobs that skip the queue."""

    maxActive = serializers.IntegerField()
    skipQueue = serializers.BooleanField(help_text="Always true.")


class QuotaPriorityOutput(serializers.Serializer):
    """Limits by priority."""

    emergency = EmergencyQuotaOutput(allow_null=True, help_text="Null: emergency jobs are refused.")


class TenantQuotaOutput(serializers.Serializer):
    """Quota of a tenant and job type, whether or not one of its limits is set, and its current use."""

    id = serializers.CharField(help_text="`{tenant}:{jobType}`")
    tenant = serializers.CharField()
    jobType = serializers.ChoiceField(choices=JOB_TYPES_OR_ALL)
    maxActive = serializers.IntegerField(allow_null=True, help_text="Null: unlimited.")
    maxPerHour = serializers.IntegerField(allow_null=True, help_text="Null: unlimited.")
    burst = serializers.IntegerField(allow_null=True)
    priority = QuotaPriorityOutput()
    active = serializers.IntegerField(help_text="Jobs that run.")
    startedLastHour = serializers.IntegerField(help_text="Counted up to 50,000 of each job type.")
    nextEligibleAt = serializers.DateTimeField(
        allow_null=True, help_text="When `maxPerHour` allows the next start. Null: now, or when a job ends."
    )
    setBy = SetByOutput(allow_null=True, help_text="The author of the newest change.")
    setAt = serializers.DateTimeField(allow_null=True)
    version = serializers.CharField(help_text="The text in the ETag, for `If-Match`.")
