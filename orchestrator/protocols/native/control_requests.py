"""What callers may send about limits, pauses, breakers and pools."""

from datetime import datetime
from typing import Any

from rest_framework import serializers

from leases.models import LimitKind
from leases.scheduling.limits import ALL_TYPES
from orchestrator.http.api.datetimes import WRONG, parse_timestamp
from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictCharField,
    StrictChoiceField,
    StrictIntegerField,
    StrictSerializer,
)
from orchestrator.protocols.native.requests import SLUG
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.specs import JOB_TYPES
from workers.registry.models import PoolPolicy

MOST_ACTIVE = 10_000
MOST_PER_HOUR = 1_000_000
SETTABLE = [LimitKind.ORGANIZATION, LimitKind.RATE, LimitKind.EMERGENCY]
OF_A_RATE = ("per_hour", "burst")


class Until(serializers.DateTimeField):
    """RFC 3339, with its offset. That it lies ahead is for the verb to say, by the server's clock."""

    def to_internal_value(self, data: Any) -> datetime:
        found = parse_timestamp(data)
        if found is None:
            raise serializers.ValidationError(WRONG)
        return found


class Reasoned(StrictSerializer):
    """Every verb wants to know why; the trail keeps it."""

    reason = SanitizedTextField(max_length=500, help_text="Kept in the trail, and shown to whoever waits.")


class Terms(Reasoned):
    """How much a limit lets through: so many at once, or so many starts an hour."""

    max_active = StrictIntegerField(required=False, min_value=0, max_value=MOST_ACTIVE)
    per_hour = StrictIntegerField(required=False, min_value=1, max_value=MOST_PER_HOUR)
    burst = StrictIntegerField(
        required=False, min_value=1, max_value=MOST_ACTIVE, help_text="Starts at once, saved up."
    )


class NewLimit(Terms):
    """POST /v1/limits."""

    kind = StrictChoiceField(choices=[str(kind) for kind in SETTABLE])
    org_slug = StrictCharField(pattern=SLUG)
    job_type = StrictChoiceField(
        choices=[ALL_TYPES, *JOB_TYPES], required=False, default=ALL_TYPES, help_text="`*`: all together."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        needed = "per_hour" if attrs["kind"] == LimitKind.RATE else "max_active"
        if needed not in attrs:
            raise serializers.ValidationError({needed: "A limit of this kind needs it."})
        if attrs["kind"] == LimitKind.EMERGENCY and attrs["job_type"] != ALL_TYPES:
            raise serializers.ValidationError({"job_type": "Emergencies are limited for all types together."})
        return terms_for(attrs["kind"], attrs)


class ChangeLimit(Terms):
    """PATCH /v1/limits/{limit_id}: the terms that shall be others."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs) == 1:
            raise serializers.ValidationError({"body": "Name what shall change."})
        return attrs


def terms_for(kind: str, sent: dict[str, Any]) -> dict[str, Any]:
    """What was sent, if all of it belongs to a limit of this kind. Raises ValidationError."""
    foreign = ("max_active",) if kind == LimitKind.RATE else OF_A_RATE
    wrong = {name: ["A limit of this kind has none."] for name in foreign if name in sent}
    if wrong:
        raise serializers.ValidationError(wrong)
    return sent


class LiftLimit(StrictSerializer):
    """DELETE /v1/limits/{limit_id}, behind the `?`: many programs send no body with a DELETE."""

    reason = SanitizedTextField(max_length=500)


class Source(StrictSerializer):
    """Whose jobs. `key`: the project, the job type or the pool; an organization has none."""

    kind = StrictChoiceField(choices=["organization", "project", "job_type", "pool"])
    org_slug = StrictCharField(
        pattern=SLUG, required=False, help_text="Of a job type: none means wherever it comes from."
    )
    key = StrictCharField(max_length=63, required=False, check=wrong_label)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        kind = attrs["kind"]
        needed = {"organization": {"org_slug"}, "project": {"org_slug", "key"}}.get(kind, {"key"})
        allowed = needed | ({"org_slug"} if kind == "job_type" else set())
        wrong = {name: ["It is missing."] for name in needed - set(attrs)}
        wrong |= {name: ["Not with this kind."] for name in set(attrs) - allowed - {"kind"}}
        if wrong:
            raise serializers.ValidationError(wrong)
        return attrs


class PausePool(Reasoned):
    """POST /v1/pools/{pool}/pause."""

    until = Until(required=False, default=None, allow_null=True, help_text="Null: until somebody resumes.")


class ThrottlePool(PausePool):
    """POST /v1/pools/{pool}/throttle."""

    per_hour = StrictIntegerField(
        min_value=1, max_value=MOST_PER_HOUR, allow_null=True, help_text="Null: no throttle any more."
    )
    burst = StrictIntegerField(required=False, default=1, min_value=1, max_value=MOST_ACTIVE)


class _Sourced(StrictSerializer):
    source = Source()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields


class Pause(_Sourced, PausePool):
    """POST /v1/limits/pause."""


class Resume(_Sourced, Reasoned):
    """POST /v1/limits/resume."""


class Throttle(_Sourced, ThrottlePool):
    """POST /v1/limits/throttle."""


class ResetBreaker(Reasoned):
    """POST /v1/breakers/reset."""

    org_slug = StrictCharField(pattern=SLUG)
    job_type = StrictChoiceField(choices=list(JOB_TYPES))


class ChangePool(Reasoned):
    """PATCH /v1/pools/{pool}."""

    policy = StrictChoiceField(choices=[str(policy) for policy in PoolPolicy])
