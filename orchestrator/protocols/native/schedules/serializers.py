"""Requests and responses of `/v1/schedules`. `wire.py` builds the responses; their classes are schema only."""

from typing import Any

from rest_framework import serializers

from orchestrator.http.api.fields import (
    ChangeSerializer,
    SanitizedTextField,
    StrictCharField,
    StrictChoiceField,
    StrictSerializer,
)
from orchestrator.http.api.schedule_jobs import ScheduledJobInput
from orchestrator.protocols.native.serializers import SLUG, ActorOutput
from orchestrator.schedules.models import (
    MAX_CRON_LENGTH,
    MAX_NAME_LENGTH,
    MAX_ZONE_LENGTH,
    MissedPolicy,
    OverlapPolicy,
    ScheduleStatus,
    TickOutcome,
)
from runtime_jobs.control_characters import wrong_label

MAX_REASON_LENGTH = 500


class ScheduleTermsInput(StrictSerializer):
    """The optional fields of a schedule."""

    time_zone = StrictCharField(
        required=False, max_length=MAX_ZONE_LENGTH, help_text="A name of the IANA time zone database. Default: UTC."
    )
    missed = StrictChoiceField(
        choices=MissedPolicy.values,
        required=False,
        help_text="For times that have passed while no scheduler process ran: `latest` (default) submits one job, "
        "`all` one for each of the last 100 times, `skip` none.",
    )
    overlap = StrictChoiceField(
        choices=OverlapPolicy.values,
        required=False,
        help_text="While an earlier job has not ended: `allow` (default) submits the job, `queue` lets it wait for the "
        "end, `skip` submits none, `cancel` cancels the earlier job.",
    )


def _cron(**kwargs: Any) -> StrictCharField:
    return StrictCharField(
        max_length=MAX_CRON_LENGTH,
        help_text="Minute, hour, day of month, month, day of week, as Debian's cron; also `L`, `LW`, `#` and `@daily`.",
        **kwargs,
    )


def _name(**kwargs: Any) -> StrictCharField:
    return StrictCharField(max_length=MAX_NAME_LENGTH, check=wrong_label, **kwargs)


class ScheduleInput(ScheduleTermsInput):
    """POST /v1/schedules."""

    org_slug = StrictCharField(pattern=SLUG)
    name = _name(help_text="Unique within the organization.")
    cron = _cron()
    job = ScheduledJobInput(help_text="The body of `POST /v1/jobs` without `org_slug` and `trigger`.")


class ChangeScheduleInput(ScheduleTermsInput, ChangeSerializer):
    """PATCH /v1/schedules/{schedule_id}: the fields to change."""

    name = _name(required=False)
    cron = _cron(required=False)
    job = ScheduledJobInput(required=False, help_text="Replaces the whole job.")


class ScheduleReasonInput(StrictSerializer):
    """POST /v1/schedules/{schedule_id}/pause, /resume and /run."""

    reason = SanitizedTextField(
        required=False,
        default="",
        allow_blank=True,
        max_length=MAX_REASON_LENGTH,
        help_text="Recorded in the audit log.",
    )


class ScheduleOutput(serializers.Serializer):
    """A schedule."""

    schedule_id = serializers.CharField()
    org_slug = serializers.CharField()
    name = serializers.CharField()
    cron = serializers.CharField()
    time_zone = serializers.CharField()
    job = serializers.DictField(help_text="As it was submitted.")
    missed = serializers.ChoiceField(choices=MissedPolicy.values)
    overlap = serializers.ChoiceField(choices=OverlapPolicy.values)
    status = serializers.ChoiceField(choices=ScheduleStatus.values)
    next_at = serializers.DateTimeField(
        allow_null=True, help_text="The time of the next job. Null while the schedule is paused."
    )
    updated_by = ActorOutput(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class ScheduleDetailOutput(ScheduleOutput):
    """A schedule with its next times."""

    next_times = serializers.ListField(
        child=serializers.DateTimeField(), help_text="The next 5 times, also while the schedule is paused."
    )


class ScheduleTickOutput(serializers.Serializer):
    """One time of a schedule with its outcome."""

    due_at = serializers.DateTimeField(help_text="The time; the Idempotency-Key of its job. Of missed ones, the first.")
    outcome = serializers.ChoiceField(
        choices=TickOutcome.values,
        help_text="`refused`: by the rules of a submit. `overlapped`: skipped, because an earlier job had not ended. "
        "`missed`: skipped with the times after it, before `missed_before`.",
    )
    is_manual = serializers.BooleanField(help_text="A client or operator requested the job.")
    job_id = serializers.CharField(allow_null=True)
    missed_before = serializers.DateTimeField(allow_null=True)
    error_code = serializers.CharField(allow_null=True)
    message = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()


class ScheduledJobOutput(serializers.Serializer):
    """The job that was submitted for a schedule."""

    job_id = serializers.CharField()
    schedule_id = serializers.CharField()
