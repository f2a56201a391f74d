"""Reads the job of a schedule by the parser of submits, when it is stored and again at each time."""

from typing import Any, Final

from django.conf import settings
from rest_framework import serializers

from orchestrator.http.api.fields import StrictCharField, StrictChoiceField, StrictSerializer, parse
from orchestrator.http.api.spec_serializers import SPEC_PARSERS, AnySpec, parse_spec
from orchestrator.schedules.models import OverlapPolicy, Schedule
from orchestrator.schedules.operations import ScheduleSubmitter
from orchestrator.services.concurrency import ConcurrencyGroup, OnConflict
from orchestrator.services.submission import Submission
from runtime_jobs.errors import Invalid
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import configured_policy

SLUG: Final = "[a-z0-9][a-z0-9-]{0,62}"
PRIORITY_NAMES: Final = ["low", "normal", "high", "emergency"]
CONFLICTS: Final = {OverlapPolicy.QUEUE: OnConflict.QUEUE, OverlapPolicy.CANCEL: OnConflict.CANCEL_OLDER}


class ScheduledJobInput(StrictSerializer):
    """The body of `POST /v1/jobs` without the members that the schedule sets: organization and trigger."""

    project_slug = StrictCharField(pattern=SLUG)
    job_type = StrictChoiceField(choices=list(SPEC_PARSERS))
    spec = AnySpec()
    pool = StrictCharField(
        pattern=SLUG, required=False, default=None, allow_null=True, help_text="Default: the pool of the project."
    )
    priority = StrictChoiceField(
        choices=PRIORITY_NAMES,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: the priority of the plan.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        try:
            return attrs | {"parsed_spec": parse_spec(attrs["job_type"], attrs["spec"])}
        except serializers.ValidationError as error:
            raise serializers.ValidationError({"spec": error.detail}) from None


def submission_of(schedule: Schedule) -> Submission:
    """Return the request for the next job of a schedule.

    Raises:
        Invalid: The stored job is not valid any more: the rules of its type have changed since.
    """
    try:
        job = parse(ScheduledJobInput, schedule.job)
    except serializers.ValidationError as error:
        raise Invalid({"job": [str(error.detail)[:400]]}, "The job of the schedule is not valid any more.") from None
    policy = OverlapPolicy(schedule.overlap)
    conflict = CONFLICTS.get(policy, OnConflict.QUEUE)
    return Submission(
        org_slug=schedule.organization.slug,
        project_slug=job["project_slug"],
        spec=job["parsed_spec"],
        trigger_kind="schedule",
        trigger_actor=schedule.name,
        correlation_id=schedule.schedule_ulid,
        source_address=None,
        pool=job["pool"],
        priority=PRIORITIES[job["priority"]] if job["priority"] else None,
        group=None if policy == OverlapPolicy.ALLOW else ConcurrencyGroup(schedule.concurrency_key, conflict),
    )


def configured_submitter() -> ScheduleSubmitter:
    """Return what submits the jobs of schedules by the settings of this installation."""
    return ScheduleSubmitter(submission_of, configured_policy, settings.DEFAULT_POOL)
