"""Requests and responses of `/v1/limits` and `/v1/quotas`.

`wire.py` builds the responses; their classes are schema only.
"""

from datetime import datetime
from typing import Any

from rest_framework import serializers

from leases.models import LimitKind, LimitScope
from leases.models.limits import MAX_ACTIVE, MAX_PER_HOUR
from leases.scheduling.limits import ALL_TYPES
from orchestrator.core.datetimes import INVALID_TIMESTAMP, parse_timestamp
from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictCharField,
    StrictChoiceField,
    StrictIntegerField,
    StrictSerializer,
)
from orchestrator.protocols.native.serializers import SLUG, ActorOutput
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.specs import JOB_TYPES

MAX_REASON_LENGTH = 500
EDITABLE_KINDS = [LimitKind.ORGANIZATION, LimitKind.PROJECT, LimitKind.RATE, LimitKind.EMERGENCY]
ONLY_ALL_TYPES = (LimitKind.PROJECT, LimitKind.EMERGENCY)
RATE_FIELDS = ("per_hour", "burst")

# --- requests ---------------------------------------------------------------------------------------------------------


class UntilField(serializers.DateTimeField):
    """RFC 3339 timestamp with an offset. The service checks by the server's clock that it is in the future."""

    def to_internal_value(self, data: Any) -> datetime:
        timestamp = parse_timestamp(data)
        if timestamp is None:
            raise serializers.ValidationError(INVALID_TIMESTAMP)
        return timestamp


class ReasonInput(StrictSerializer):
    """Reason of a change."""

    reason = SanitizedTextField(
        max_length=MAX_REASON_LENGTH,
        help_text="Recorded in the audit log, and displayed to those whose jobs wait.",
    )


class LimitTermsInput(ReasonInput):
    """Terms of a limit: concurrency, or starts per hour."""

    max_active = StrictIntegerField(required=False, min_value=0, max_value=MAX_ACTIVE)
    per_hour = StrictIntegerField(required=False, min_value=1, max_value=MAX_PER_HOUR)
    burst = StrictIntegerField(
        required=False, min_value=1, max_value=MAX_ACTIVE, help_text="Starts allowed at once after an idle period."
    )


class NewLimitInput(LimitTermsInput):
    """POST /v1/limits."""

    kind = StrictChoiceField(choices=[str(kind) for kind in EDITABLE_KINDS])
    org_slug = StrictCharField(pattern=SLUG)
    project_slug = StrictCharField(pattern=SLUG, required=False, help_text="Needed for kind `project`, only there.")
    job_type = StrictChoiceField(
        choices=[ALL_TYPES, *JOB_TYPES], required=False, default=ALL_TYPES, help_text="`*`: all types together."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        kind = attrs["kind"]
        needed = ["per_hour" if kind == LimitKind.RATE else "max_active"]
        needed += ["project_slug"] if kind == LimitKind.PROJECT else []
        if missing := [name for name in needed if name not in attrs]:
            text = f"This field is required for a limit of kind {kind}."
            raise serializers.ValidationError(dict.fromkeys(missing, text))
        if kind in ONLY_ALL_TYPES and attrs["job_type"] != ALL_TYPES:
            text = f"A limit of kind {kind} applies to all types together: send {ALL_TYPES} or omit it."
            raise serializers.ValidationError({"job_type": text})
        return require_terms_of_kind(kind, attrs)


class ChangeLimitInput(LimitTermsInput):
    """PATCH /v1/limits/{limit_id}: the terms to change."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs) == 1:
            raise serializers.ValidationError({"body": "At least one of max_active, per_hour and burst is required."})
        return attrs


def require_terms_of_kind(kind: str, terms: dict[str, Any]) -> dict[str, Any]:
    """Return the terms.

    Raises:
        ValidationError: A term does not belong to a limit of this kind.
    """
    foreign: tuple[str, ...] = ("max_active",) if kind == LimitKind.RATE else RATE_FIELDS
    foreign += () if kind == LimitKind.PROJECT else ("project_slug",)
    errors = {name: [f"A limit of kind {kind} does not have this field."] for name in foreign if name in terms}
    if errors:
        raise serializers.ValidationError(errors)
    return terms


class RemoveLimitQuery(StrictSerializer):
    """Query parameters of DELETE /v1/limits/{limit_id}. Many clients cannot send a body with DELETE."""

    reason = SanitizedTextField(max_length=MAX_REASON_LENGTH)


class LimitSourceInput(StrictSerializer):
    """The jobs to pause, resume or throttle. `key` is the project, the job type or the pool."""

    kind = StrictChoiceField(choices=["organization", "project", "job_type", "pool"])
    org_slug = StrictCharField(
        pattern=SLUG, required=False, help_text="Omit it with kind `job_type` to name all organizations."
    )
    key = StrictCharField(max_length=63, required=False, check=wrong_label)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        kind = attrs["kind"]
        needed = {"organization": {"org_slug"}, "project": {"org_slug", "key"}}.get(kind, {"key"})
        allowed = needed | ({"org_slug"} if kind == "job_type" else set())
        errors = {name: [f"This field is required with kind {kind}."] for name in needed - set(attrs)}
        errors |= {name: [f"This field is not allowed with kind {kind}."] for name in set(attrs) - allowed - {"kind"}}
        if errors:
            raise serializers.ValidationError(errors)
        return attrs


class PausePoolInput(ReasonInput):
    """POST /v1/pools/{pool}/pause."""

    until = UntilField(
        required=False, default=None, allow_null=True, help_text="When the pause ends. Null: when it is resumed."
    )


class ThrottlePoolInput(ReasonInput):
    """POST /v1/pools/{pool}/throttle."""

    until = UntilField(
        required=False, default=None, allow_null=True, help_text="When the throttle ends. Null: when it is removed."
    )
    per_hour = StrictIntegerField(
        min_value=1, max_value=MAX_PER_HOUR, allow_null=True, help_text="Starts per hour. Null removes the throttle."
    )
    burst = StrictIntegerField(required=False, default=1, min_value=1, max_value=MAX_ACTIVE)


class _SourceField(StrictSerializer):
    source = LimitSourceInput()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields


class PauseInput(_SourceField, PausePoolInput):
    """POST /v1/limits/pause."""


class ResumeInput(_SourceField, ReasonInput):
    """POST /v1/limits/resume."""


class ThrottleInput(_SourceField, ThrottlePoolInput):
    """POST /v1/limits/throttle."""


# --- responses --------------------------------------------------------------------------------------------------------


class LimitOutput(serializers.Serializer):
    """A limit, its current use, and its origin."""

    limit_id = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=[str(kind) for kind in LimitKind])
    scope = serializers.ChoiceField(choices=[str(scope) for scope in LimitScope])
    org_slug = serializers.CharField(allow_null=True)
    key = serializers.CharField(
        help_text="Depends on the scope: a job type or `*`, a project, a pool, an address or a concurrency key."
    )
    max_active = serializers.IntegerField(allow_null=True)
    running = serializers.IntegerField(
        allow_null=True, help_text="Jobs that count against `max_active`; null if the limit does not count jobs."
    )
    per_hour = serializers.IntegerField(allow_null=True)
    burst = serializers.IntegerField(allow_null=True)
    next_start_at = serializers.DateTimeField(
        allow_null=True,
        help_text="When the next job can start without any other change. Null: now, or when a job ends or the limit "
        "is changed.",
    )
    until = serializers.DateTimeField(allow_null=True, help_text="When the limit ends.")
    waiting = serializers.BooleanField(help_text="True if the limit blocks jobs.")
    reason = serializers.CharField(allow_blank=True)
    set_by = ActorOutput(allow_null=True)
    set_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField(help_text="The number in the ETag.")


class QuotaOutput(serializers.Serializer):
    """Submit quota of an organization, and its current use."""

    org_slug = serializers.CharField()
    plan = serializers.CharField()
    queued = serializers.IntegerField(help_text="Waiting jobs, including jobs that wait for dependencies.")
    max_queued = serializers.IntegerField(allow_null=True, help_text="Null: unlimited.")
    submits_per_minute = serializers.IntegerField(allow_null=True, help_text="Null: unlimited.")
    submit_burst = serializers.IntegerField(allow_null=True, help_text="Submits allowed at once after an idle period.")
    refused = serializers.CharField(
        allow_null=True, help_text="Error code of a submit that is sent now. Null: a submit is accepted."
    )
    retry_after = serializers.IntegerField(allow_null=True, help_text="Seconds until a submit can be accepted.")
