"""Parses what runners send (document 001). The real runner's messages are in
`tests/orchestrator/protocols/delta/recorded`. Unknown fields are ignored, because documents and code differ in several;
unknown values of closed lists are refused."""

from datetime import datetime
from typing import Any

from rest_framework import serializers

from orchestrator.http.api.datetimes import WRONG, parse_timestamp
from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictBooleanField,
    StrictCharField,
    StrictChoiceField,
    StrictDecimalField,
    StrictIntegerField,
)
from orchestrator.http.observability.log_redaction import redacted
from orchestrator.protocols.delta.states import CANCELED, FAILURES, SUCCEEDED
from orchestrator.services import ArtifactRef
from runtime_jobs.control_characters import wrong_label

MOST_ARTIFACTS = 100
MOST_CACHES = 100
LONGEST_TEXT = 65_536
INT32 = 2**31


class LenientTimestamp(serializers.DateTimeField):
    """A time by the runner's clock, which decides nothing here: any that is one, nanoseconds too."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, allow_null=True, default=None, **kwargs)

    def to_internal_value(self, data: Any) -> datetime:
        found = parse_timestamp(data)
        if found is None:
            raise serializers.ValidationError(WRONG)
        return found


class TruncatedText(SanitizedTextField):
    """Words for people, of which the beginning is kept: no job is lost over a long one."""

    def __init__(self, *, keep: int) -> None:
        super().__init__(required=False, allow_null=True, default=None, allow_blank=True, max_length=LONGEST_TEXT)
        self.keep = keep

    def to_internal_value(self, data: Any) -> str:
        return super().to_internal_value(data)[: self.keep]


def wrong_reference(text: str) -> str | None:
    """It is shown to people, and stands in their pages."""
    if not text.strip() or not text.isprintable():
        return "Printable characters are needed."
    return "A lease id must not stand in it." if redacted(text) != text else None


class ArtifactReference(serializers.Serializer):
    type = StrictCharField(max_length=63, check=wrong_reference)
    uri = StrictCharField(max_length=2048, check=wrong_reference)


class CacheUse(serializers.Serializer):
    """Advice for people. One without type or key is skipped, as the real orchestrator does."""

    type = SanitizedTextField(required=False, default="", allow_blank=True, max_length=63)
    key = SanitizedTextField(required=False, default="", allow_blank=True, max_length=1024)
    hit = StrictBooleanField(required=False, default=False)
    read_only = StrictBooleanField(required=False, default=False)  # type: ignore[assignment] # a field here, not DRF's attribute


class RunnerProgress(serializers.Serializer):
    percent = StrictDecimalField(required=False, allow_null=True, min_value=0, max_value=100)
    current_step = TruncatedText(keep=200)
    step_index = StrictIntegerField(required=False, allow_null=True, min_value=0, max_value=100_000)
    message = TruncatedText(keep=1000)


class LogCursor(serializers.Serializer):
    bytes_sent = StrictIntegerField(min_value=0, max_value=2**63 - 1)


class Timings(serializers.Serializer):
    started_at = LenientTimestamp()
    finished_at = LenientTimestamp()


class LeaseMessage(serializers.Serializer):
    """What every message about a lease has."""

    lease_id = StrictCharField(max_length=200)
    runner_id = SanitizedTextField(max_length=200)
    job_id = StrictCharField(required=False, allow_null=True, default=None, max_length=200)


class WithArtifacts(LeaseMessage):
    artifacts = serializers.ListField(
        child=ArtifactReference(), required=False, allow_null=True, default=None, max_length=MOST_ARTIFACTS
    )
    summary = TruncatedText(keep=4096)

    def references(self) -> tuple[ArtifactRef, ...]:
        return tuple(ArtifactRef(one["type"], one["uri"]) for one in self.validated_data["artifacts"] or ())


class LeaseWanted(serializers.Serializer):
    """POST …/lease: transport B has no message of its own for it. `capabilities` are the runner's tags: of what is
    registered for its worker it is offered for those; nothing sent means all."""

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
    type = StrictChoiceField(choices=["AckLease"])
    job_id = StrictCharField(max_length=200)
    accepted_at = LenientTimestamp()


class RunnerHeartbeat(LeaseMessage):
    type = StrictChoiceField(choices=["Heartbeat"])
    progress = RunnerProgress(required=False, allow_null=True, default=None)
    log_cursor = LogCursor(required=False, allow_null=True, default=None)
    ts = LenientTimestamp()

    def told(self) -> dict[str, Any] | None:
        """Progress as the job keeps it, or None: nothing was said of it."""
        progress, cursor = self.validated_data["progress"], self.validated_data["log_cursor"]
        if progress is None and cursor is None:
            return None
        found = {name: value for name, value in (progress or {}).items() if value is not None}
        return found | ({} if cursor is None else {"log_cursor": dict(cursor)})


class RunnerComplete(WithArtifacts):
    type = StrictChoiceField(choices=["Complete"])
    status = StrictChoiceField(choices=[SUCCEEDED, *FAILURES])
    exit_code = StrictIntegerField(required=False, allow_null=True, default=None, min_value=-INT32, max_value=INT32 - 1)
    timings = Timings(required=False, allow_null=True, default=None)
    finished_at = LenientTimestamp()
    caches = serializers.ListField(
        child=CacheUse(), required=False, allow_null=True, default=None, max_length=MOST_CACHES
    )

    def exit(self) -> int | None:
        """The real runner leaves a zero out."""
        code, status = self.validated_data["exit_code"], self.validated_data["status"]
        return 0 if code is None and status == SUCCEEDED else code

    def result(self) -> dict[str, Any]:
        """What is kept of the rest. The times are the runner's."""
        sent = self.validated_data
        times = {"finished_at": sent["finished_at"]} | {k: v for k, v in (sent["timings"] or {}).items() if v}
        caches = [dict(one) for one in sent["caches"] or () if one["type"] and one["key"]]
        return {
            "summary": sent["summary"] or "",
            "caches": caches,
            **{name: at.isoformat().replace("+00:00", "Z") for name, at in times.items() if at},
        }


class CancelAck(WithArtifacts):
    type = StrictChoiceField(choices=["CancelAck"])
    final_status = StrictChoiceField(choices=[CANCELED])
    ts = LenientTimestamp()
