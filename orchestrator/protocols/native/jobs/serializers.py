"""Requests and responses of `/v1/runtime/jobs` and `/v1/jobs`.

`wire.py` builds the responses; their classes are schema only.
"""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from leases.models import LimitKind, LimitScope
from orchestrator.http.api.fields import SanitizedTextField, StrictCharField, StrictChoiceField, StrictSerializer
from orchestrator.http.api.openapi import Problem
from orchestrator.http.api.spec_serializers import (
    SPEC_PARSERS,
    AnySpec,
    AnySpecOutput,
    ExecutionInput,
    SourceInput,
    build_runtime_spec,
    parse_spec,
)
from orchestrator.protocols.native.serializers import SLUG, ActorOutput, ProgressInput, RawEntry
from orchestrator.selectors.pending_reasons.reason import ReasonCode
from orchestrator.services.concurrency import OnConflict
from orchestrator.services.dependencies import MAX_DEPENDENCIES
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.event_types import JOB_EVENT_TYPES
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.models import FailureExplanation, StepAnnotation
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.specs import JOB_TYPES, JobSpec
from runtime_jobs.states import (
    CLIENT_TRIGGERS,
    STATUS,
    STATUS_WITHOUT_INGEST,
    TRIGGER_KINDS,
    CancelReason,
    Conclusion,
    FailureClass,
    FailureReason,
    JobState,
    StepStatus,
)

MAX_BULK_JOBS = 500
PRIORITY_NAMES = ["low", "normal", "high", "emergency"]  # other priorities come from plans

RUNTIME_STATUSES = list(dict.fromkeys(STATUS.values()))
ALL_STATUSES = [*RUNTIME_STATUSES, *STATUS_WITHOUT_INGEST.values()]
END_REASONS = [*FailureReason.values, *(reason for reason in CancelReason.values if reason not in FailureReason.values)]

# --- requests ---------------------------------------------------------------------------------------------------------


class TriggerInput(StrictSerializer):
    """Cause of the submit."""

    kind = StrictChoiceField(choices=CLIENT_TRIGGERS)
    actor = StrictCharField(required=False, allow_null=True, default=None, max_length=200, check=wrong_label)


class ConcurrencyInput(StrictSerializer):
    """Concurrency group: at most one job of the organization runs per key."""

    key = StrictCharField(max_length=200, check=wrong_label)
    when_busy = StrictChoiceField(
        choices=[str(policy) for policy in OnConflict],
        required=False,
        default=str(OnConflict.QUEUE),
        help_text="If another job has the key: `queue` waits, `cancel_older` cancels the earlier jobs, `drop_new` "
        "cancels this job.",
    )


class SubmitInput(StrictSerializer):
    """Fields of every submit."""

    org_slug = StrictCharField(pattern=SLUG)
    project_slug = StrictCharField(pattern=SLUG)
    trigger = TriggerInput()
    depends_on = serializers.ListField(
        child=StrictCharField(pattern=f"rtj_{ULID_PATTERN}"),
        required=False,
        default=list,
        max_length=MAX_DEPENDENCIES,
        help_text="Jobs of the same organization that must succeed before this job starts.",
    )
    priority = StrictChoiceField(
        choices=PRIORITY_NAMES,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: the priority of the plan.",
    )
    concurrency = ConcurrencyInput(required=False, default=None, allow_null=True)

    @staticmethod
    def job_spec(validated: dict[str, Any]) -> JobSpec:
        """Return the job spec in the validated data of this serializer."""
        raise NotImplementedError


class SubmitRuntimeJobInput(SubmitInput):
    """POST /v1/runtime/jobs."""

    source = SourceInput()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = ExecutionInput()

    @staticmethod
    def job_spec(validated: dict[str, Any]) -> JobSpec:
        return build_runtime_spec(validated)


class SubmitAnyJobInput(SubmitInput):
    """POST /v1/jobs."""

    job_type = StrictChoiceField(choices=list(SPEC_PARSERS))
    spec = AnySpec()
    pool = StrictCharField(
        pattern=SLUG, required=False, default=None, allow_null=True, help_text="Default: the pool of the project."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        try:
            return attrs | {"parsed_spec": parse_spec(attrs["job_type"], attrs["spec"])}
        except serializers.ValidationError as error:
            raise serializers.ValidationError({"spec": error.detail}) from None

    @staticmethod
    def job_spec(validated: dict[str, Any]) -> JobSpec:
        spec: JobSpec = validated["parsed_spec"]
        return spec


class CancelJobInput(StrictSerializer):
    """POST …/jobs/{job_id}/cancel."""

    reason = SanitizedTextField(required=False, default="", allow_blank=True, max_length=1000)


class RetryJobInput(StrictSerializer):
    """POST …/jobs/{job_id}/retry."""

    reason = SanitizedTextField(max_length=1000)


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {},
        "description": "Merge patch (RFC 7396): members to change, null to remove one. A list replaces a list.",
    }
)
class SpecPatchField(serializers.DictField):
    """Changes of a spec. The changed spec is validated as that of a submit."""


class RerunJobInput(StrictSerializer):
    """POST /v1/jobs/{job_id}/rerun."""

    spec = SpecPatchField(required=False, default=dict)
    reason = SanitizedTextField(required=False, default="", allow_blank=True, max_length=1000)
    priority = StrictChoiceField(
        choices=PRIORITY_NAMES,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: the priority of the plan.",
    )


@extend_schema_field({"type": "object", "description": "The body of a submit of one job."})
class BulkSubmitEntry(RawEntry):
    """One submit of a bulk submit."""


class BulkSubmitInput(StrictSerializer):
    """POST /v1/jobs/bulk and /v1/runtime/jobs/bulk."""

    jobs = serializers.ListField(child=BulkSubmitEntry(), allow_empty=False, max_length=MAX_BULK_JOBS)


# --- responses --------------------------------------------------------------------------------------------------------


class SourceOutput(serializers.Serializer):
    """Repository and commit."""

    kind = serializers.ChoiceField(choices=["github"])
    repo_url = serializers.CharField()
    owner = serializers.CharField()
    repo = serializers.CharField()
    ref = serializers.CharField(allow_null=True)
    git_commit = serializers.CharField()
    pull_request_number = serializers.IntegerField(allow_null=True)


class ExecutionOutput(serializers.Serializer):
    """Command of a `runtime` job, and its permissions."""

    working_directory = serializers.CharField()
    command = serializers.ListField(child=serializers.CharField())
    timeout_seconds = serializers.IntegerField()
    allow_network = serializers.BooleanField()
    allow_exec = serializers.BooleanField()
    trace = serializers.ChoiceField(choices=JobTrace.choices, allow_null=True, help_text="As submitted.")


class TriggerOutput(serializers.Serializer):
    """Cause of the submit."""

    kind = serializers.ChoiceField(choices=TRIGGER_KINDS)
    actor = serializers.CharField(allow_null=True)


class FailureOutput(serializers.Serializer):
    """Reason of a failure or a cancel."""

    reason = serializers.ChoiceField(choices=END_REASONS)
    message = serializers.CharField()

    def get_fields(self) -> dict[str, serializers.Field]:
        """Add the field `class`, between the others. A Python keyword cannot be a class attribute."""
        fields = super().get_fields()
        failure_class = serializers.ChoiceField(choices=FailureClass.choices, allow_null=True)
        return {"reason": fields["reason"], "class": failure_class, "message": fields["message"]}


class EventOutput(serializers.Serializer):
    """One event of a job."""

    event_id = serializers.CharField()
    seq = serializers.IntegerField()
    event_type = serializers.ChoiceField(choices=list(JOB_EVENT_TYPES))
    created_at = serializers.DateTimeField()
    actor = ActorOutput()
    worker_id = serializers.CharField(allow_null=True)
    from_state = serializers.ChoiceField(choices=JobState.choices, allow_null=True)
    to_state = serializers.ChoiceField(choices=JobState.choices, allow_null=True)
    fence = serializers.IntegerField()
    payload = serializers.DictField()
    hash = serializers.CharField()


class EventsOutput(serializers.Serializer):
    """A page of the event history of a job."""

    results = EventOutput(many=True)
    next_after = serializers.IntegerField(
        allow_null=True, help_text="Value of `after` for the next page; null on the last page."
    )


class JobStepOutput(serializers.Serializer):
    """A step of a job. Job types without steps have the logs of some: the fields of a workflow file are null there."""

    step = serializers.IntegerField(help_text="The number of the step, from 0.")
    id = serializers.IntegerField(allow_null=True)
    step_id = serializers.CharField(allow_null=True, help_text="The `id` in the workflow file.")
    name = serializers.CharField(help_text="The name, else the id, else what the step executes.")
    run = serializers.CharField(allow_null=True)
    uses = serializers.CharField(allow_null=True)
    status = serializers.ChoiceField(choices=StepStatus.choices, allow_null=True)
    conclusion = serializers.ChoiceField(choices=Conclusion.choices, allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    completed_at = serializers.DateTimeField(allow_null=True)
    log_bytes = serializers.IntegerField(help_text="`GET …/logs?step=N` returns so many bytes.")
    log_is_truncated = serializers.BooleanField(help_text="The log has reached its limit; the rest was dropped.")
    annotation_count = serializers.IntegerField()


class JobStepsOutput(serializers.Serializer):
    """The steps of a job in their order."""

    results = JobStepOutput(many=True)


class AnnotationOutput(serializers.Serializer):
    """A notice, warning or error that a step has printed as a workflow command. Secrets are masked."""

    id = serializers.IntegerField()
    step = serializers.IntegerField(help_text="The number of the step, from 0.")
    level = serializers.ChoiceField(choices=StepAnnotation.Level.choices)
    title = serializers.CharField(allow_null=True)
    message = serializers.CharField()
    path = serializers.CharField(allow_null=True, help_text="The file that it concerns, as printed.")
    start_line = serializers.IntegerField(allow_null=True)
    end_line = serializers.IntegerField(allow_null=True)
    start_column = serializers.IntegerField(allow_null=True)
    end_column = serializers.IntegerField(allow_null=True)


class AnnotationsOutput(serializers.Serializer):
    """A page of the annotations of a job, in the order in which they were printed."""

    results = AnnotationOutput(many=True)
    next_after = serializers.IntegerField(
        allow_null=True, help_text="Value of `after` for the next page; null on the last page."
    )


class _JobOutput(serializers.Serializer):
    """Fields of every job."""

    job_id = serializers.CharField()
    state = serializers.ChoiceField(choices=JobState.choices)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    org_slug = serializers.CharField()
    project_slug = serializers.CharField()
    trigger = TriggerOutput()
    pool = serializers.CharField()
    trace = serializers.ChoiceField(
        choices=JobTrace.choices, help_text="What the worker records of the commands. Further attempts keep it."
    )
    priority = serializers.IntegerField(
        help_text="A higher priority starts first: low is 50, normal 150, high 250, emergency 400."
    )
    concurrency_key = serializers.CharField(allow_null=True)
    attempt = serializers.IntegerField()
    retry_of = serializers.CharField(allow_null=True)
    root_job_id = serializers.CharField()
    cancel_requested = serializers.BooleanField()
    ingest_run_id = serializers.CharField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    failure = FailureOutput(allow_null=True)
    correlation_id = serializers.CharField()


class LogCursorOutput(serializers.Serializer):
    """Position in a log that a runner stores elsewhere."""

    bytes_sent = serializers.IntegerField()


class ProgressOutput(ProgressInput):
    """Progress as reported by the worker."""

    log_cursor = LogCursorOutput(
        required=False, help_text="How much of the log a Delta CI runner has stored elsewhere."
    )


class ArtifactOutput(serializers.Serializer):
    """Reference to an artifact, as reported by the worker. The server has not checked the URI: do not trust it."""

    artifact_id = serializers.CharField()
    type = serializers.CharField()
    uri = serializers.CharField()
    created_at = serializers.DateTimeField()


class ExplanationOutput(serializers.Serializer):
    """Probable cause of the failure, guessed from the failure reason and message."""

    category = serializers.ChoiceField(choices=FailureExplanation.Category.choices)
    confidence = serializers.ChoiceField(choices=FailureExplanation.Confidence.choices)
    summary = serializers.CharField()
    details = serializers.CharField()


class MissingCapabilityOutput(serializers.Serializer):
    """A requirement of the job that a worker does not meet."""

    kind = serializers.ChoiceField(choices=["requirement", "isolation", "job_type"])
    name = serializers.CharField()


class BlockingLimitOutput(serializers.Serializer):
    """The limit that blocks the job."""

    kind = serializers.ChoiceField(choices=LimitKind.choices)
    scope = serializers.ChoiceField(choices=LimitScope.choices)
    key = serializers.CharField()
    max_active = serializers.IntegerField(allow_null=True)
    per_hour = serializers.IntegerField(allow_null=True)


class PendingReasonOutput(serializers.Serializer):
    """Why the job waits. The fields after `message` depend on `code`."""

    code = serializers.ChoiceField(choices=ReasonCode.choices)
    message = serializers.CharField(help_text="One sentence for people; the wording may change.")
    depends_on = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="Dependencies that have not ended."
    )
    pool = serializers.CharField(required=False)
    workers_alive = serializers.IntegerField(required=False)
    missing = MissingCapabilityOutput(
        many=True, required=False, help_text="What the worker that matches best does not offer."
    )
    position = serializers.IntegerField(required=False)
    limit = BlockingLimitOutput(required=False)
    next_at = serializers.DateTimeField(
        required=False, allow_null=True, help_text="When the reason ends without any action."
    )
    paused_by = serializers.CharField(required=False)
    paused_until = serializers.DateTimeField(required=False, allow_null=True)
    note = serializers.CharField(required=False)


class _PendingOutput(serializers.Serializer):
    """Fields of a job that waits."""

    queue_position = serializers.IntegerField(
        allow_null=True, help_text="1 is next; counts at most 1000 jobs. Null if the job does not wait."
    )
    pending_reason = PendingReasonOutput(allow_null=True)


class LogTruncatedOutput(serializers.Serializer):
    """Output that is not in the log."""

    bytes = serializers.IntegerField()
    lines = serializers.IntegerField()


class _JobDetailOutput(_PendingOutput):
    """Fields of a job that lists do not contain."""

    idempotency_key = serializers.CharField(
        allow_null=True,
        help_text="The key of the request that created this attempt. Null: it had none, was a bulk submit, or the key "
        "has expired (RETENTION_IDEMPOTENCY_KEYS_DAYS, 2).",
    )
    progress = ProgressOutput(allow_null=True)
    log_truncated = LogTruncatedOutput(
        allow_null=True,
        help_text="What the worker left out between the beginning and the end of the output; null if nothing.",
    )
    last_event = EventOutput(allow_null=True)
    depends_on = serializers.ListField(child=serializers.CharField(), help_text="First attempt of each dependency.")
    retries = serializers.ListField(child=serializers.CharField())
    artifacts = ArtifactOutput(many=True)
    explanation = ExplanationOutput(allow_null=True)


class RuntimeJobOutput(_JobOutput):
    """A job of type `runtime`."""

    status = serializers.ChoiceField(choices=RUNTIME_STATUSES)
    source = SourceOutput()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = ExecutionOutput()


class RuntimeJobListItemOutput(_PendingOutput, RuntimeJobOutput):
    """A job of type `runtime` in a list."""


class RuntimeJobDetailOutput(_JobDetailOutput, RuntimeJobOutput):
    """A job of type `runtime` with all details."""


class AnyJobOutput(_JobOutput):
    """A job of any type."""

    status = serializers.ChoiceField(choices=ALL_STATUSES)
    job_type = serializers.ChoiceField(choices=list(JOB_TYPES))
    spec = AnySpecOutput(help_text="As submitted, with defaults.")
    batch_id = serializers.CharField(allow_null=True)
    result = serializers.DictField(allow_null=True, help_text="As reported by the worker in the final message.")


class RerunJobOutput(AnyJobOutput):
    """A new job with the changed spec of another one."""

    rerun_of = serializers.CharField()
    changed_paths = serializers.ListField(
        child=serializers.CharField(), help_text="JSON Pointers to the changed values of the spec, at most 100."
    )
    is_replay = serializers.BooleanField(help_text="Always false: a rerun is compared with nothing.")


class AnyJobListItemOutput(_PendingOutput, AnyJobOutput):
    """A job of any type in a list."""


class AnyJobDetailOutput(_JobDetailOutput, AnyJobOutput):
    """A job of any type with all details."""


class BatchEntryOutput(serializers.Serializer):
    """Result of one entry: `body` if the status is 200 or 201, else `error`."""

    status = serializers.IntegerField()
    error = Problem(required=False)


class RuntimeJobEntryOutput(BatchEntryOutput):
    """Result of one submit: `body` if the status is 201, else `error`."""

    body = RuntimeJobOutput(required=False)


class AnyJobEntryOutput(BatchEntryOutput):
    """Result of one submit: `body` if the status is 201, else `error`."""

    body = AnyJobOutput(required=False)


class RuntimeJobEntriesOutput(serializers.Serializer):
    """Results in the order of the submitted jobs."""

    results = RuntimeJobEntryOutput(many=True)


class AnyJobEntriesOutput(serializers.Serializer):
    """Results in the order of the submitted jobs."""

    results = AnyJobEntryOutput(many=True)
