"""What callers may send, field by field, with the limits of document 000 and `docs/api.md`."""

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
from orchestrator.http.api.spec_serializers import (
    BIGINT,
    SPEC_PARSERS,
    AnySpec,
    ExecutionSent,
    SourceSent,
    runtime_of,
    spec_of,
)
from orchestrator.services import OnConflict
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.specs import RUNTIME, JobSpec
from runtime_jobs.states import CLIENT_TRIGGERS, REPORTABLE_FAILURES, RUNNING_STATES

CHUNK_LIMIT = 512 * 1024
SLUG = "[a-z0-9][a-z0-9-]{0,62}"
MOST_DEPENDENCIES = 64
PRIORITY_NAMES = ["low", "normal", "high", "emergency"]  # the others are the plans'


class Trigger(StrictSerializer):
    kind = StrictChoiceField(choices=CLIENT_TRIGGERS)
    actor = StrictCharField(required=False, allow_null=True, default=None, max_length=200, check=wrong_label)


class Concurrency(StrictSerializer):
    """Of the organization's jobs that name one key one runs at a time."""

    key = StrictCharField(max_length=200, check=wrong_label)
    when_busy = StrictChoiceField(
        choices=[str(word) for word in OnConflict],
        required=False,
        default=str(OnConflict.QUEUE),
        help_text="What becomes of the others: this one waits, those before it are canceled, or this one is.",
    )


class Submit(StrictSerializer):
    """What every submit has."""

    org_slug = StrictCharField(pattern=SLUG)
    project_slug = StrictCharField(pattern=SLUG)
    trigger = Trigger()
    depends_on = serializers.ListField(
        child=StrictCharField(pattern=f"rtj_{ULID_PATTERN}"),
        required=False,
        default=list,
        max_length=MOST_DEPENDENCIES,
        help_text="Jobs of the same organization that have to succeed first.",
    )
    priority = StrictChoiceField(
        choices=PRIORITY_NAMES,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: the plan's.",
    )
    concurrency = Concurrency(required=False, default=None, allow_null=True)

    @staticmethod
    def wanted(sent: dict[str, Any]) -> JobSpec:
        """The spec in what was sent and is valid."""
        raise NotImplementedError


class SubmitJob(Submit):
    """POST /v1/runtime/jobs."""

    source = SourceSent()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = ExecutionSent()

    @staticmethod
    def wanted(sent: dict[str, Any]) -> JobSpec:
        return runtime_of(sent)


class SubmitAny(Submit):
    """POST /v1/jobs."""

    job_type = StrictChoiceField(choices=list(SPEC_PARSERS))
    spec = AnySpec()
    pool = StrictCharField(
        pattern=SLUG, required=False, default=None, allow_null=True, help_text="Null: its project's."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        try:
            return attrs | {"wanted": spec_of(attrs["job_type"], attrs["spec"])}
        except serializers.ValidationError as error:
            raise serializers.ValidationError({"spec": error.detail}) from None

    @staticmethod
    def wanted(sent: dict[str, Any]) -> JobSpec:
        found: JobSpec = sent["wanted"]
        return found


class CancelJob(StrictSerializer):
    reason = SanitizedTextField(required=False, default="", allow_blank=True, max_length=1000)


class RetryJob(StrictSerializer):
    reason = SanitizedTextField(max_length=1000)


class Claim(StrictSerializer):
    """POST /v1/runtime/leases."""

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
    wait_seconds = StrictDecimalField(required=False, default=0, min_value=0, max_value=60)
    acknowledge = StrictBooleanField(required=False, default=False)
    max_leases = StrictIntegerField(
        required=False, default=None, min_value=1, max_value=64, help_text="With it the answer is a list."
    )

    def validate_capabilities(self, offered: dict[str, bool] | None) -> dict[str, bool] | None:
        if offered is not None and (len(offered) > 64 or any(len(name) > 63 for name in offered)):
            raise serializers.ValidationError("At most 64, with names of at most 63 characters.")
        if wrong := next(filter(None, map(wrong_label, offered or ())), None):
            raise serializers.ValidationError(wrong)
        return offered


class Progress(StrictSerializer):
    percent = StrictDecimalField(required=False, min_value=0, max_value=100)
    current_step = SanitizedTextField(required=False, allow_blank=True, max_length=200)
    step_index = StrictIntegerField(required=False, min_value=0, max_value=100_000)
    message = SanitizedTextField(required=False, allow_blank=True, max_length=1000)


class Heartbeat(StrictSerializer):
    phase = StrictChoiceField(choices=[str(state) for state in RUNNING_STATES], required=False, default=None)
    progress = Progress(required=False, default=None)


class Report(StrictSerializer):
    phase = StrictChoiceField(choices=[str(state) for state in RUNNING_STATES])


class LogChunk(StrictSerializer):
    step = StrictIntegerField(required=False, default=0, min_value=0, max_value=100_000)
    seq = StrictIntegerField(min_value=0, max_value=2**31 - 1)
    chunk = StrictCharField(allow_blank=True, help_text="Base64; at most 512 KiB raw.")

    def validate_chunk(self, text: str) -> bytes:
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise serializers.ValidationError("This is not base64.") from None
        if len(raw) > CHUNK_LIMIT:
            raise serializers.ValidationError("At most 512 KiB.")
        return raw


class StepDone(StrictSerializer):
    """How one step went. Times are the worker's: shown to people, used for nothing."""

    index = StrictIntegerField(min_value=0, max_value=100_000)
    exit_code = StrictIntegerField(allow_null=True, min_value=-(2**31), max_value=2**31 - 1)
    started_at = TimestampField(allow_null=True)
    finished_at = TimestampField(allow_null=True)


class FileFound(StrictSerializer):
    """A file that matched a pattern. It is named, not kept: there is no place for it."""

    type = SanitizedTextField(max_length=63)
    path = SanitizedTextField(max_length=1024)
    size_bytes = StrictIntegerField(min_value=0, max_value=BIGINT)
    sha256 = StrictCharField(pattern="[0-9a-f]{64}")


class Told(StrictSerializer):
    """What a final message may tell of what was done."""

    exit_code = StrictIntegerField(
        required=False, default=None, allow_null=True, min_value=-(2**31), max_value=2**31 - 1
    )
    steps = serializers.ListField(child=StepDone(), required=False, max_length=256)
    files = serializers.ListField(child=FileFound(), required=False, max_length=256)
    files_omitted = StrictIntegerField(
        required=False, min_value=0, max_value=BIGINT, help_text="Matched too, and are not named."
    )


class Succeeded(Told):
    status = StrictChoiceField(
        choices=["uploaded", "succeeded"], help_text="uploaded: with the run that ingest acknowledged."
    )
    ingest_run_id = StrictCharField(
        pattern="[A-Za-z0-9_-]{1,64}", required=False, default=None, help_text="With uploaded."
    )
    uploaded_at = TimestampField(required=False, help_text="Checked, not kept: times are the server's.")
    counts = serializers.DictField(
        child=StrictIntegerField(min_value=0, max_value=BIGINT), required=False, default=None
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if (attrs["status"] == "uploaded") != (attrs["ingest_run_id"] is not None):
            raise serializers.ValidationError({"ingest_run_id": "It comes with uploaded, and only with that."})
        return attrs


class Complete(StrictSerializer):
    result = Succeeded()


class Failed(Told):
    status = StrictChoiceField(choices=["failed"])
    reason = StrictChoiceField(choices=sorted(REPORTABLE_FAILURES))
    message = SanitizedTextField(required=False, default="", allow_blank=True, max_length=65_536)
    payload = serializers.DictField(
        required=False, default=None, help_text="With upload_failed: the run that could not be uploaded."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["payload"] is not None and attrs["reason"] != "upload_failed":
            raise serializers.ValidationError({"payload": "Only with upload_failed."})
        return attrs


class Fail(StrictSerializer):
    result = Failed()


class AcknowledgeCancel(StrictSerializer):
    message = SanitizedTextField(required=False, default="", allow_blank=True, max_length=4096)


class Release(StrictSerializer):
    message = SanitizedTextField(required=False, default="", allow_blank=True, max_length=4096)
    unable = StrictBooleanField(
        required=False, default=False, help_text="This machine cannot run it; do not offer it again."
    )


class Nothing(StrictSerializer):
    """A body without fields."""


class Entry(serializers.Field):
    """One object of a call for many. What is in it is read by the rules of the call for one, and refused for itself."""

    default_error_messages = {"invalid": "An object is needed."}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail("invalid")
        return data


@extend_schema_field(
    {
        "type": "object",
        "properties": {"lease_id": {"type": "string"}},
        "required": ["lease_id"],
        "description": "And what the call for one lease has in its body.",
    }
)
class LeaseEntry(Entry):
    def to_internal_value(self, data: Any) -> dict[str, Any]:
        entry = super().to_internal_value(data)
        if not isinstance(entry.get("lease_id"), str):
            raise serializers.ValidationError({"lease_id": ["A string is needed."]})
        return entry


@extend_schema_field({"type": "object", "description": "As the body of a call for one job."})
class JobEntry(Entry):
    pass


class ManyLeases(StrictSerializer):
    """POST /v1/runtime/leases/heartbeat and its like."""

    leases = serializers.ListField(child=LeaseEntry(), allow_empty=False, max_length=256)

    def validate_leases(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({entry["lease_id"] for entry in entries}) < len(entries):
            raise serializers.ValidationError("A lease is named twice.")
        return entries


class ManyJobs(StrictSerializer):
    """POST /v1/jobs/bulk."""

    jobs = serializers.ListField(child=JobEntry(), allow_empty=False, max_length=500)
