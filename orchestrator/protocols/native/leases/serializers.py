"""Requests and responses of `/v1/runtime/leases`. `wire.py` builds the responses; their classes are schema only."""

import base64
import binascii
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictBooleanField,
    StrictCharField,
    StrictChoiceField,
    StrictDecimalField,
    StrictIntegerField,
    StrictSerializer,
    TimestampField,
)
from orchestrator.http.api.payload_serializers import (
    VERDICT,
    CursorsField,
    EnvironmentInput,
    LeasedPayloadOutput,
    PayloadObjectField,
)
from orchestrator.http.api.spec_serializers import BIGINT, OciSpecOutput
from orchestrator.incidents.worker_readiness import DISK_LOW, REPEATED_FAILURES
from orchestrator.ingest.presenter import SEVERITIES
from orchestrator.protocols.native.jobs.serializers import (
    ALL_STATUSES,
    BatchEntryOutput,
    ExecutionOutput,
    SourceOutput,
    TriggerOutput,
)
from orchestrator.protocols.native.serializers import SLUG, ProgressInput, RawEntry
from orchestrator.results.outputs import checked_output
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.models.tenants import ISOLATION_CHOICES, JobTrace
from runtime_jobs.specs import JOB_TYPES, RUNTIME
from runtime_jobs.specs.steps import MAX_CACHES
from runtime_jobs.states import REPORTABLE_FAILURES, RUNNING_STATES

MAX_CHUNK_BYTES = 512 * 1024
MAX_CAPABILITIES = 64
MAX_CAPABILITY_LENGTH = 63
MAX_LEASES_PER_CALL = 256
INT32 = 2**31

# --- requests ---------------------------------------------------------------------------------------------------------


class NextClaimInput(StrictSerializer):
    """A claim of one job that follows a final message. It never waits."""

    worker_id = StrictCharField(max_length=64)
    pool = StrictCharField(pattern=SLUG, required=False, default=None, allow_null=True)
    capabilities = serializers.DictField(child=StrictBooleanField(), required=False, default=None, allow_null=True)
    labels = serializers.ListField(
        child=StrictCharField(max_length=63, check=wrong_label), required=False, default=None, max_length=64
    )
    job_types = serializers.ListField(
        child=StrictCharField(max_length=50, check=wrong_label),
        required=False,
        default=lambda: [RUNTIME],
        allow_empty=False,
        max_length=16,
    )
    acknowledge = StrictBooleanField(required=False, default=False)

    def validate_capabilities(self, offered: dict[str, bool] | None) -> dict[str, bool] | None:
        if offered is not None and (
            len(offered) > MAX_CAPABILITIES or any(len(name) > MAX_CAPABILITY_LENGTH for name in offered)
        ):
            raise serializers.ValidationError(
                f"At most {MAX_CAPABILITIES} capabilities, each with a name of at most {MAX_CAPABILITY_LENGTH} "
                "characters, are allowed."
            )
        if problem := next(filter(None, map(wrong_label, offered or ())), None):
            raise serializers.ValidationError(problem)
        return offered


class ClaimInput(NextClaimInput):
    """POST /v1/runtime/leases."""

    wait_seconds = StrictDecimalField(required=False, default=0, min_value=0, max_value=60)
    max_leases = StrictIntegerField(
        required=False,
        default=None,
        min_value=1,
        max_value=64,
        help_text="Largest number of leases. With this field the response is a list.",
    )


class HeartbeatInput(StrictSerializer):
    """POST …/leases/{lease_id}/heartbeat."""

    phase = StrictChoiceField(choices=[str(state) for state in RUNNING_STATES], required=False, default=None)
    progress = ProgressInput(required=False, default=None)


class ReportInput(StrictSerializer):
    """POST …/leases/{lease_id}/report."""

    phase = StrictChoiceField(choices=[str(state) for state in RUNNING_STATES])


class LogChunkInput(StrictSerializer):
    """POST …/leases/{lease_id}/logs."""

    step = StrictIntegerField(required=False, default=0, min_value=0, max_value=100_000)
    seq = StrictIntegerField(min_value=0, max_value=INT32 - 1)
    chunk = StrictCharField(allow_blank=True, help_text="Base64 of at most 512 KiB.")

    def validate_chunk(self, text: str) -> bytes:
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise serializers.ValidationError("The chunk must be base64.") from None
        if len(raw) > MAX_CHUNK_BYTES:
            raise serializers.ValidationError(
                f"The chunk has {len(raw)} bytes; at most {MAX_CHUNK_BYTES} bytes are allowed. Send it in parts."
            )
        return raw


class JobOutputInput(StrictSerializer):
    """POST …/leases/{lease_id}/output."""

    output = StrictCharField(help_text="Base64 of a JSON object: `results`, and `error` and `truncated` if they apply.")

    def validate_output(self, text: str) -> bytes:
        try:
            return checked_output(base64.b64decode(text, validate=True))
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None


class StepFindingInput(StrictSerializer):
    """A suspicious action in the trace of a step."""

    rule = SanitizedTextField(max_length=63)
    severity = StrictChoiceField(choices=SEVERITIES)
    detail = SanitizedTextField(max_length=512, allow_blank=True)
    count = StrictIntegerField(min_value=0, max_value=BIGINT)


class StepTraceInput(StrictSerializer):
    """Totals and the worst findings of the trace of a step."""

    level = StrictChoiceField(choices=JobTrace.values)
    bytes = StrictIntegerField(min_value=0, max_value=BIGINT)
    truncated = StrictBooleanField()
    counts = serializers.DictField(child=StrictIntegerField(min_value=0, max_value=BIGINT))
    findings = serializers.ListField(child=StepFindingInput(), max_length=16)


class StepResultInput(StrictSerializer):
    """Result of one step. The times are by the worker's clock; they are displayed and not used otherwise."""

    index = StrictIntegerField(min_value=0, max_value=100_000)
    exit_code = StrictIntegerField(allow_null=True, min_value=-INT32, max_value=INT32 - 1)
    started_at = TimestampField(allow_null=True)
    finished_at = TimestampField(allow_null=True)
    trace = StepTraceInput(required=False, help_text="Of a step that was traced.")


class ArtifactFileInput(StrictSerializer):
    """A file that matched an artifact pattern, as the worker describes it."""

    type = SanitizedTextField(max_length=63)
    path = SanitizedTextField(max_length=1024)
    size_bytes = StrictIntegerField(min_value=0, max_value=BIGINT)
    sha256 = StrictCharField(pattern="[0-9a-f]{64}")
    stored = StrictBooleanField(required=False, help_text="Whether the worker has uploaded the file as an artifact.")


class CacheResultInput(StrictSerializer):
    """Use of a cache by the job, for display."""

    type = SanitizedTextField(max_length=63)
    key = SanitizedTextField(max_length=255)
    hit = StrictBooleanField(help_text="Whether the worker has restored an entry of this key.")
    read_only = StrictBooleanField()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields


class LogTruncatedInput(StrictSerializer):
    """Output that was dropped between the head and the tail of the log."""

    bytes = StrictIntegerField(min_value=1, max_value=BIGINT)
    lines = StrictIntegerField(min_value=0, max_value=BIGINT)


class FinalResultInput(StrictSerializer):
    """Fields of every final message."""

    exit_code = StrictIntegerField(required=False, default=None, allow_null=True, min_value=-INT32, max_value=INT32 - 1)
    steps = serializers.ListField(child=StepResultInput(), required=False, max_length=256)
    files = serializers.ListField(child=ArtifactFileInput(), required=False, max_length=256)
    files_omitted = StrictIntegerField(
        required=False,
        min_value=0,
        max_value=BIGINT,
        help_text="Number of further files that matched and are not in `files`.",
    )
    files_omitted_reasons = serializers.DictField(
        child=StrictIntegerField(min_value=1, max_value=BIGINT),
        required=False,
        help_text="The number of files in `files_omitted` by reason, such as `too_many_files` or `name_refused`.",
    )
    log_truncated = LogTruncatedInput(required=False, help_text="What the worker left out of the log.")
    caches = serializers.ListField(child=CacheResultInput(), required=False, max_length=MAX_CACHES)
    outputs = PayloadObjectField(required=False, help_text="What the job produced, for whoever submitted it.")
    cursors = CursorsField(required=False, help_text="The position in each feed to which the job has read.")
    output = StrictCharField(
        required=False, pattern="[A-Za-z0-9_.-]{1,255}", help_text="The name of the output that was stored before."
    )
    verdict = StrictCharField(required=False, pattern=VERDICT, help_text="The conclusion, such as `pass`.")
    environment = EnvironmentInput(required=False)


class SucceededInput(FinalResultInput):
    """Result of a job that succeeded."""

    status = StrictChoiceField(
        choices=["uploaded", "succeeded"], help_text="`uploaded` if ingest has acknowledged the run of the job."
    )
    ingest_run_id = StrictCharField(
        pattern="[A-Za-z0-9_-]{1,64}",
        required=False,
        default=None,
        help_text="Required with status `uploaded`, and not allowed with another status.",
    )
    uploaded_at = TimestampField(
        required=False, help_text="Validated and not stored: the server records its own timestamps."
    )
    counts = serializers.DictField(
        child=StrictIntegerField(min_value=0, max_value=BIGINT), required=False, default=None
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["status"] == "uploaded" and attrs["ingest_run_id"] is None:
            raise serializers.ValidationError({"ingest_run_id": "This field is required with status uploaded."})
        if attrs["status"] != "uploaded" and attrs["ingest_run_id"] is not None:
            raise serializers.ValidationError(
                {"ingest_run_id": f"This field is only allowed with status uploaded, not {attrs['status']}."}
            )
        return attrs


class CompleteEntryInput(StrictSerializer):
    """One lease of POST …/leases/complete."""

    result = SucceededInput()


class CompleteInput(CompleteEntryInput):
    """POST …/leases/{lease_id}/complete."""

    claim_next = NextClaimInput(
        required=False,
        default=None,
        allow_null=True,
        help_text="Claims the next job for this worker in the same transaction. The response then has `next_lease`.",
    )


class FailedInput(FinalResultInput):
    """Result of a job that failed."""

    status = StrictChoiceField(choices=["failed"])
    reason = StrictChoiceField(choices=sorted(REPORTABLE_FAILURES))
    message = SanitizedTextField(required=False, default="", allow_blank=True, max_length=65_536)
    final = StrictBooleanField(
        required=False,
        default=False,
        help_text="True if no result can follow. A job whose late result counts then ends.",
    )
    payload = serializers.DictField(
        required=False, default=None, help_text="With reason `upload_failed`: the run that was not uploaded."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["payload"] is not None and attrs["reason"] != "upload_failed":
            raise serializers.ValidationError(
                {"payload": f"This field is only allowed with reason upload_failed, not {attrs['reason']}."}
            )
        return attrs


class FailEntryInput(StrictSerializer):
    """One lease of POST …/leases/fail."""

    result = FailedInput()


class FailInput(FailEntryInput):
    """POST …/leases/{lease_id}/fail."""

    claim_next = NextClaimInput(
        required=False,
        default=None,
        allow_null=True,
        help_text="Claims the next job for this worker in the same transaction. The response then has `next_lease`.",
    )


class AcknowledgeCancelInput(StrictSerializer):
    """POST …/leases/{lease_id}/acknowledge-cancel."""

    message = SanitizedTextField(required=False, default="", allow_blank=True, max_length=4096)


class ReleaseInput(StrictSerializer):
    """POST …/leases/{lease_id}/release."""

    message = SanitizedTextField(required=False, default="", allow_blank=True, max_length=4096)
    unable = StrictBooleanField(
        required=False, default=False, help_text="True if this worker cannot run the job and must not get it again."
    )


class UnreadyInput(StrictSerializer):
    """POST /v1/runtime/workers/unready."""

    reason = StrictChoiceField(choices=[DISK_LOW, REPEATED_FAILURES])
    message = SanitizedTextField(max_length=4096)


@extend_schema_field(
    {
        "type": "object",
        "properties": {"lease_id": {"type": "string"}},
        "required": ["lease_id"],
        "additionalProperties": True,
        "description": "The lease, and the fields of the call for one lease.",
    }
)
class LeaseBatchEntry(RawEntry):
    """One lease of a batch call."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        entry = super().to_internal_value(data)
        if not isinstance(entry.get("lease_id"), str):
            raise serializers.ValidationError({"lease_id": ["This field is required and must be a string."]})
        return entry


class LeaseBatchInput(StrictSerializer):
    """POST /v1/runtime/leases/acknowledge, /heartbeat, /complete and /fail."""

    leases = serializers.ListField(child=LeaseBatchEntry(), allow_empty=False, max_length=MAX_LEASES_PER_CALL)

    def validate_leases(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({entry["lease_id"] for entry in entries}) < len(entries):
            raise serializers.ValidationError("Each lease_id must be unique in one call.")
        return entries


# --- responses --------------------------------------------------------------------------------------------------------


class LeasedExecutionOutput(ExecutionOutput):
    """Command of a `runtime` job, its permissions, and the sandbox that it requires."""

    least_isolation = serializers.ChoiceField(choices=ISOLATION_CHOICES)
    egress = serializers.ListField(child=serializers.CharField())
    trace = serializers.ChoiceField(choices=JobTrace.choices)


class ArtifactPatternOutput(serializers.Serializer):
    """Pattern of the files that are artifacts."""

    type = serializers.CharField()
    path_glob = serializers.CharField()


class CacheOutput(serializers.Serializer):
    """Paths that a worker may keep between jobs."""

    type = serializers.CharField()
    key = serializers.CharField()
    paths = serializers.ListField(child=serializers.CharField())
    read_only = serializers.BooleanField()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields


class LeasedStepsOutput(serializers.Serializer):
    """Steps of a `steps` job, their permissions, and the sandbox that they require."""

    name = serializers.CharField()
    steps = serializers.ListField(child=serializers.CharField())
    working_directory = serializers.CharField()
    environment = serializers.DictField(child=serializers.CharField(allow_blank=True))
    artifacts = ArtifactPatternOutput(many=True)
    caches = CacheOutput(many=True)
    image = serializers.CharField(allow_null=True)
    timeout_seconds = serializers.IntegerField()
    allow_network = serializers.BooleanField()
    least_isolation = serializers.ChoiceField(choices=ISOLATION_CHOICES)
    egress = serializers.ListField(child=serializers.CharField())
    trace = serializers.ChoiceField(choices=JobTrace.choices)


class MachineOutput(serializers.Serializer):
    """Resources of the hardware spec, which are the limits of the job."""

    cpu = serializers.IntegerField()
    memory = serializers.IntegerField(help_text="Bytes.")
    disk = serializers.IntegerField(help_text="Bytes.")
    network = serializers.BooleanField()


class LeasedOciOutput(OciSpecOutput):
    """Job config of an `oci` job, the machine and the isolation that it requires, and a token to pull its image."""

    machine = MachineOutput(allow_null=True)
    pull_token = serializers.CharField()

    least_isolation = serializers.ChoiceField(choices=ISOLATION_CHOICES)
    egress = serializers.ListField(child=serializers.CharField())
    trace = serializers.ChoiceField(choices=JobTrace.choices)


class LeasedWorkflowJobOutput(serializers.Serializer):
    """A workflow job: its limits and permissions. Its steps are received one by one."""

    job_key = serializers.CharField()
    timeout_seconds = serializers.IntegerField()
    allow_network = serializers.BooleanField()
    least_isolation = serializers.ChoiceField(choices=ISOLATION_CHOICES)
    egress = serializers.ListField(child=serializers.CharField())
    trace = serializers.ChoiceField(choices=JobTrace.choices)


class LeasedJobOutput(serializers.Serializer):
    """The job of a lease."""

    job_id = serializers.CharField()
    org_slug = serializers.CharField()
    project_slug = serializers.CharField()
    job_type = serializers.ChoiceField(choices=list(JOB_TYPES))
    source = SourceOutput(allow_null=True)  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = LeasedExecutionOutput(required=False, help_text="Present for jobs of type `runtime`.")
    steps = LeasedStepsOutput(required=False, help_text="Present for jobs of type `steps`.")
    oci = LeasedOciOutput(required=False, help_text="Present for jobs of type `oci`.")
    actions = LeasedWorkflowJobOutput(required=False, help_text="Present for jobs of type `actions`.")
    request = LeasedPayloadOutput(required=False, help_text="Present for jobs with a payload.")
    trigger = TriggerOutput()
    attempt = serializers.IntegerField()
    retry_of = serializers.CharField(allow_null=True)
    fence = serializers.IntegerField()
    heartbeat_interval_seconds = serializers.IntegerField()
    lease_ttl_seconds = serializers.IntegerField()
    acknowledge_within_seconds = serializers.IntegerField()
    unsent_run = serializers.DictField(
        required=False, help_text="If present, upload this run and do not execute the job."
    )


class LeaseOutput(serializers.Serializer):
    """A new lease."""

    lease_id = serializers.CharField()
    job = LeasedJobOutput()
    lease_expires_at = serializers.DateTimeField()


class LeasesOutput(serializers.Serializer):
    """New leases, as the response to a claim with `max_leases`."""

    leases = LeaseOutput(many=True)


class JobStatusOutput(serializers.Serializer):
    """Status of the job after the message."""

    job_id = serializers.CharField()
    status = serializers.ChoiceField(choices=ALL_STATUSES)


class FinishedOutput(JobStatusOutput):
    """Status of the job after its final message, and the next lease if the request has `claim_next`."""

    next_lease = LeaseOutput(
        required=False, allow_null=True, help_text="Null if no job is available, or the worker may not claim."
    )


class HeartbeatOutput(JobStatusOutput):
    """New expiry of the lease, and the cancel request if there is one."""

    lease_expires_at = serializers.DateTimeField()
    cancel_requested = serializers.BooleanField()
    cancel_reason = serializers.CharField(allow_null=True)
    cancel_deadline_seconds = serializers.FloatField(
        allow_null=True, help_text="Seconds that are left to stop the job; null without a cancel request."
    )


class StoredOutput(serializers.Serializer):
    """Name of the stored output."""

    output = serializers.CharField()


class LogChunkOutput(serializers.Serializer):
    """Sequence number of the next chunk."""

    next_seq = serializers.IntegerField()
    truncated = serializers.BooleanField(help_text="True if the log is full and this chunk was dropped.")


class JobStatusEntryOutput(BatchEntryOutput):
    """Result of one lease: `body` if the status is 200, else `error`."""

    lease_id = serializers.CharField()
    body = JobStatusOutput(required=False)


class HeartbeatEntryOutput(BatchEntryOutput):
    """Result of one lease: `body` if the status is 200, else `error`."""

    lease_id = serializers.CharField()
    body = HeartbeatOutput(required=False)


class JobStatusEntriesOutput(serializers.Serializer):
    """Results in the order of the leases in the request."""

    results = JobStatusEntryOutput(many=True)


class HeartbeatEntriesOutput(serializers.Serializer):
    """Results in the order of the leases in the request."""

    results = HeartbeatEntryOutput(many=True)
