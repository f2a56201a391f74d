"""Messages from and to runners (document 001). `wire.py` builds the responses; their classes are schema only.

Unknown fields are ignored, because documents and real code differ in several. Unknown values of closed lists are
errors.
`tests/orchestrator/protocols/delta/recorded` contains messages of the real runner.
"""

from datetime import datetime
from typing import Any

from rest_framework import serializers

from orchestrator.core.datetimes import INVALID_TIMESTAMP, format_timestamp, parse_timestamp
from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictBooleanField,
    StrictCharField,
    StrictChoiceField,
    StrictDecimalField,
    StrictIntegerField,
)
from orchestrator.http.observability.log_redaction import redacted
from orchestrator.protocols.delta.states import CANCEL, CANCELED, FAILURES, SUCCEEDED
from orchestrator.services.job_end import ArtifactRef
from runtime_jobs.control_characters import wrong_label

MAX_ARTIFACTS = 100
MAX_CACHES = 100
MAX_TEXT_LENGTH = 65_536
INT32 = 2**31

# --- requests ---------------------------------------------------------------------------------------------------------


class LenientTimestampField(serializers.DateTimeField):
    """A timestamp by the runner's clock, nanoseconds included. The server only displays it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, allow_null=True, default=None, **kwargs)

    def to_internal_value(self, data: Any) -> datetime:
        timestamp = parse_timestamp(data)
        if timestamp is None:
            raise serializers.ValidationError(INVALID_TIMESTAMP)
        return timestamp


class TruncatedTextField(SanitizedTextField):
    """Text for people, cut to `keep` characters: a long text does not fail the job."""

    def __init__(self, *, keep: int) -> None:
        super().__init__(required=False, allow_null=True, default=None, allow_blank=True, max_length=MAX_TEXT_LENGTH)
        self.keep = keep

    def to_internal_value(self, data: Any) -> str:
        return super().to_internal_value(data)[: self.keep]


def validate_reference(text: str) -> str | None:
    """Return what is wrong with a part of an artifact reference, or None. Pages display it."""
    if not text.strip() or not text.isprintable():
        return "Only printable characters are allowed, and at least one that is not a space."
    return "A lease id is not allowed here: it is a secret." if redacted(text) != text else None


class ArtifactReference(serializers.Serializer):
    """Reference to an artifact that the runner has stored."""

    type = StrictCharField(max_length=63, check=validate_reference)
    uri = StrictCharField(max_length=2048, check=validate_reference)


class CacheUse(serializers.Serializer):
    """Use of a cache, for display. An entry without type or key is skipped, as the real orchestrator does."""

    type = SanitizedTextField(required=False, default="", allow_blank=True, max_length=63)
    key = SanitizedTextField(required=False, default="", allow_blank=True, max_length=1024)
    hit = StrictBooleanField(required=False, default=False)
    read_only = StrictBooleanField(required=False, default=False)  # type: ignore[assignment] # a field here, not DRF's attribute


class RunnerProgress(serializers.Serializer):
    """Progress of the job."""

    percent = StrictDecimalField(required=False, allow_null=True, min_value=0, max_value=100)
    current_step = TruncatedTextField(keep=200)
    step_index = StrictIntegerField(required=False, allow_null=True, min_value=0, max_value=100_000)
    message = TruncatedTextField(keep=1000)


class LogCursor(serializers.Serializer):
    """Position in the log that the runner stores elsewhere."""

    bytes_sent = StrictIntegerField(min_value=0, max_value=2**63 - 1)


class Timings(serializers.Serializer):
    """Start and end of the job, by the runner's clock."""

    started_at = LenientTimestampField()
    finished_at = LenientTimestampField()


class LeaseMessage(serializers.Serializer):
    """Fields of every message about a lease."""

    lease_id = StrictCharField(max_length=200)
    runner_id = SanitizedTextField(max_length=200)
    job_id = StrictCharField(required=False, allow_null=True, default=None, max_length=200)


class FinalLeaseMessage(LeaseMessage):
    """Fields of every message that ends a job."""

    artifacts = serializers.ListField(
        child=ArtifactReference(), required=False, allow_null=True, default=None, max_length=MAX_ARTIFACTS
    )
    summary = TruncatedTextField(keep=4096)

    def references(self) -> tuple[ArtifactRef, ...]:
        """Return the references to artifacts, for the services."""
        artifacts = self.validated_data["artifacts"] or ()
        return tuple(ArtifactRef(artifact["type"], artifact["uri"]) for artifact in artifacts)


class LeaseRequest(serializers.Serializer):
    """POST …/lease. Transport B of the documents has no message for it.

    `capabilities` are the tags of the runner: they narrow the registered capabilities of its worker. Without them the
    runner is offered for all.
    """

    type = StrictChoiceField(choices=["LeaseRequest"], required=False)
    runner_id = SanitizedTextField(max_length=200)
    capabilities = serializers.ListField(
        child=StrictCharField(max_length=63, check=wrong_label),
        required=False,
        allow_null=True,
        default=None,
        max_length=64,
    )
    wait_seconds = StrictDecimalField(required=False, default=0, min_value=0, max_value=60)


class AckLease(LeaseMessage):
    """POST …/ack-lease."""

    type = StrictChoiceField(choices=["AckLease"])
    job_id = StrictCharField(max_length=200)
    accepted_at = LenientTimestampField()


class RunnerHeartbeat(LeaseMessage):
    """POST …/heartbeat."""

    type = StrictChoiceField(choices=["Heartbeat"])
    progress = RunnerProgress(required=False, allow_null=True, default=None)
    log_cursor = LogCursor(required=False, allow_null=True, default=None)
    ts = LenientTimestampField()

    def job_progress(self) -> dict[str, Any] | None:
        """Return the progress as the job stores it, or None if the message has none."""
        progress, cursor = self.validated_data["progress"], self.validated_data["log_cursor"]
        if progress is None and cursor is None:
            return None
        known = {name: value for name, value in (progress or {}).items() if value is not None}
        return known | ({} if cursor is None else {"log_cursor": dict(cursor)})


class RunnerComplete(FinalLeaseMessage):
    """POST …/complete."""

    type = StrictChoiceField(choices=["Complete"])
    status = StrictChoiceField(choices=[SUCCEEDED, *FAILURES])
    exit_code = StrictIntegerField(required=False, allow_null=True, default=None, min_value=-INT32, max_value=INT32 - 1)
    timings = Timings(required=False, allow_null=True, default=None)
    finished_at = LenientTimestampField()
    caches = serializers.ListField(
        child=CacheUse(), required=False, allow_null=True, default=None, max_length=MAX_CACHES
    )

    def job_exit_code(self) -> int | None:
        """Return the exit code. The real runner omits a zero."""
        code, status = self.validated_data["exit_code"], self.validated_data["status"]
        return 0 if code is None and status == SUCCEEDED else code

    def job_result(self) -> dict[str, Any]:
        """Return the part of the message that is stored as the result of the job. Times are by the runner's clock."""
        validated = self.validated_data
        times = {"finished_at": validated["finished_at"]} | {
            name: time for name, time in (validated["timings"] or {}).items() if time
        }
        caches = [dict(cache) for cache in validated["caches"] or () if cache["type"] and cache["key"]]
        return {
            "summary": validated["summary"] or "",
            "caches": caches,
            **{name: format_timestamp(time) for name, time in times.items() if time},
        }


class CancelAck(FinalLeaseMessage):
    """POST …/cancel-ack."""

    type = StrictChoiceField(choices=["CancelAck"])
    final_status = StrictChoiceField(choices=[CANCELED])
    ts = LenientTimestampField()


# --- responses --------------------------------------------------------------------------------------------------------


def message_type(name: str) -> serializers.ChoiceField:
    """Return the field `type` of a message."""
    return serializers.ChoiceField(choices=[name])


class RunnerArtifactPattern(serializers.Serializer):
    """Pattern of files to store as artifacts."""

    type = serializers.CharField()
    path_glob = serializers.CharField()


class RunnerCache(serializers.Serializer):
    """Paths that the runner may keep between jobs."""

    type = serializers.CharField()
    key = serializers.CharField()
    paths = serializers.ListField(child=serializers.CharField())
    read_only = serializers.BooleanField()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields


class RunnerSource(serializers.Serializer):
    """Repository and commit to check out."""

    kind = serializers.ChoiceField(choices=["github"])
    repo_url = serializers.CharField()
    owner = serializers.CharField()
    repo = serializers.CharField()
    ref = serializers.CharField(allow_null=True)
    git_commit = serializers.CharField()
    pull_request_number = serializers.IntegerField(allow_null=True)


class RunnerSpec(serializers.Serializer):
    """Steps that the runner executes, with their environment."""

    name = serializers.CharField()
    workdir = serializers.CharField()
    steps = serializers.ListField(child=serializers.CharField())
    env = serializers.DictField(child=serializers.CharField())
    artifacts = RunnerArtifactPattern(many=True)
    caches = RunnerCache(many=True)
    image = serializers.CharField(required=False)
    source = RunnerSource(required=False, help_text="The commit to check out.")  # type: ignore[assignment] # a field


class LeaseGranted(serializers.Serializer):
    """A new lease with its job."""

    type = message_type("LeaseGranted")
    run_id = serializers.CharField()
    job_id = serializers.CharField(help_text="The same for every attempt.")
    attempt_id = serializers.CharField()
    attempt_number = serializers.IntegerField()
    lease_id = serializers.CharField()
    lease_ttl_seconds = serializers.IntegerField()
    heartbeat_interval_seconds = serializers.IntegerField()
    max_runtime_seconds = serializers.IntegerField()
    job_spec = RunnerSpec()


class LeaseAccepted(serializers.Serializer):
    """The lease is acknowledged."""

    type = message_type("LeaseAccepted")
    lease_id = serializers.CharField()
    job_id = serializers.CharField()
    heartbeat_interval_seconds = serializers.IntegerField()
    max_runtime_seconds = serializers.IntegerField()


class HeartbeatAck(serializers.Serializer):
    """The lease is extended."""

    type = message_type("HeartbeatAck")
    lease_id = serializers.CharField()
    extend_lease = serializers.BooleanField()
    new_lease_ttl_seconds = serializers.IntegerField()
    cancel_requested = serializers.BooleanField()
    cancel_deadline_seconds = serializers.IntegerField(
        help_text="Seconds that are left to stop the job; 0 without a cancel request."
    )
    cancel_reason = serializers.ChoiceField(choices=list(dict.fromkeys(CANCEL.values())), required=False)


class CompleteAck(serializers.Serializer):
    """The job has ended."""

    type = message_type("CompleteAck")
    lease_id = serializers.CharField()
    accepted = serializers.BooleanField(
        help_text="False if the job was canceled first, so that the result does not count."
    )


class CancelFinalized(serializers.Serializer):
    """The job is canceled."""

    type = message_type("CancelFinalized")
    lease_id = serializers.CharField()
    job_id = serializers.CharField()
    final_status = serializers.ChoiceField(choices=[CANCELED])
