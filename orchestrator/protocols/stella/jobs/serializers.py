"""Requests and responses of `/api/jobs`. `wire.py` builds the responses; their classes are schema only."""

from typing import Any, Final

from rest_framework import serializers

from orchestrator.core.datetimes import INVALID_TIMESTAMP, parse_timestamp
from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictCharField,
    StrictChoiceField,
    StrictIntegerField,
    StrictSerializer,
)
from orchestrator.http.api.headers import KEY_PATTERN
from orchestrator.http.api.payload_serializers import (
    DIGEST,
    MAX_TIMEOUT_SECONDS,
    CursorsField,
    EnvironmentInput,
    PayloadObjectField,
)
from orchestrator.protocols.stella.jobs.filters import LEVELS
from orchestrator.protocols.stella.openapi import SLUG_PATTERN
from orchestrator.protocols.stella.serializers import MAX_REASON_LENGTH
from orchestrator.protocols.stella.visible_jobs import UUID_PATTERN
from orchestrator.selectors.pending_reasons.reason import ReasonCode
from orchestrator.services.dependencies import MAX_DEPENDENCIES
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.orchestration_status import OrchestrationStatus
from runtime_jobs.specs import JOB_TYPES, PAYLOAD_TYPES
from runtime_jobs.states import CancelReason, FailureClass, FailureReason

PRIORITIES: Final = list(reversed(LEVELS))  # low, normal, high, emergency
CORRELATION: Final = "[ -~]{1,64}"
END_REASONS: Final = list(dict.fromkeys([*FailureReason.values, *CancelReason.values]))

# --- requests ---------------------------------------------------------------------------------------------------------


def _check_timestamp(text: str) -> str | None:
    return None if parse_timestamp(text) else INVALID_TIMESTAMP


class SubmitOrchestrationJobInput(StrictSerializer):
    """POST /api/jobs: the structure of document 004, section 3.3, with three members of our own."""

    jobId = StrictCharField(
        pattern=UUID_PATTERN, required=False, default=None, allow_null=True, help_text="Becomes the id of the job."
    )
    jobType = StrictChoiceField(choices=list(PAYLOAD_TYPES))
    tenant = StrictCharField(
        pattern=SLUG_PATTERN, required=False, default=None, allow_null=True, help_text="Default: that of the token."
    )
    project = StrictCharField(
        pattern=SLUG_PATTERN,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: the default project of the tenant, else its only enabled one.",
    )
    priority = StrictChoiceField(
        choices=PRIORITIES,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: the priority of the plan.",
    )
    payloadDigest = StrictCharField(
        pattern=DIGEST,
        required=False,
        default=None,
        allow_null=True,
        help_text="SHA-256 of the payload's canonical form (RFC 8785). Another one than that of the payload is 409.",
    )
    payload = PayloadObjectField()
    cursors = CursorsField(required=False, default=dict)
    timeoutSeconds = StrictIntegerField(
        min_value=1,
        max_value=MAX_TIMEOUT_SECONDS,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: the most that the plan allows. The worker is asked to stop at the limit; after a grace of "
        "PAYLOAD_TIMEOUT_GRACE_SECONDS (60) the server ends the job.",
    )
    dependencies = serializers.ListField(
        child=StrictCharField(pattern=UUID_PATTERN),
        required=False,
        default=list,
        max_length=MAX_DEPENDENCIES,
        help_text="Jobs of the same tenant that must complete before this job starts.",
    )
    idempotencyKey = StrictCharField(
        pattern=KEY_PATTERN,
        required=False,
        default=None,
        allow_null=True,
        help_text="The same as the header `Idempotency-Key`. Two different values are 400.",
    )
    correlationId = StrictCharField(
        pattern=CORRELATION,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: that of `traceparent`, else the id of the request.",
    )
    requestedBy = StrictCharField(
        required=False,
        default=None,
        allow_null=True,
        max_length=200,
        check=wrong_label,
        help_text="Kept and displayed. The actor of the job is the token.",
    )
    requestedAt = StrictCharField(
        required=False,
        default=None,
        allow_null=True,
        max_length=40,
        check=_check_timestamp,
        help_text="RFC 3339. Kept and displayed. `createdAt` is the time of the server.",
    )


class CancelOrchestrationJobInput(StrictSerializer):
    """POST /api/jobs/{id}/cancel."""

    reason = SanitizedTextField(required=False, default="", allow_blank=True, max_length=MAX_REASON_LENGTH)


# --- responses --------------------------------------------------------------------------------------------------------


class OrchestrationJobOutput(serializers.Serializer):
    """A job: its first attempt by name, its newest one by status."""

    jobId = serializers.UUIDField()
    jobType = serializers.ChoiceField(choices=list(JOB_TYPES))
    tenant = serializers.CharField()
    project = serializers.CharField()
    status = serializers.ChoiceField(choices=OrchestrationStatus.choices)
    nextEligibleAt = serializers.DateTimeField(
        allow_null=True, help_text="When a throttled job may start. Null: when a job ends, or not throttled."
    )
    priority = serializers.ChoiceField(choices=PRIORITIES)
    payloadDigest = serializers.CharField()
    correlationId = serializers.CharField()
    replayOf = serializers.UUIDField(allow_null=True)
    requestedBy = serializers.CharField(allow_null=True)
    requestedAt = serializers.DateTimeField(allow_null=True)
    attempt = serializers.IntegerField()
    cancelRequested = serializers.BooleanField()
    createdAt = serializers.DateTimeField(help_text="When the newest attempt was queued.")
    startedAt = serializers.DateTimeField(allow_null=True)
    completedAt = serializers.DateTimeField(allow_null=True)


class SubmittedOrchestrationJobOutput(OrchestrationJobOutput):
    """A job with what it executes."""

    payload = serializers.DictField(help_text="Of types without a payload: the specification of the native API.")
    cursors = serializers.DictField(child=serializers.CharField())
    timeoutSeconds = serializers.IntegerField(allow_null=True)
    idempotencyKey = serializers.CharField(
        allow_null=True,
        help_text="The key of the submit. Null: it had none, or it has expired (RETENTION_IDEMPOTENCY_KEYS_DAYS, 2).",
    )


class OrchestrationReasonOutput(serializers.Serializer):
    """Why a job waits. `details` depend on `code`."""

    code = serializers.ChoiceField(choices=ReasonCode.choices)
    message = serializers.CharField(help_text="One sentence for people; the wording may change.")
    details = serializers.DictField()


class OrchestrationResultOutput(serializers.Serializer):
    """The product of a job, as its worker reported it."""

    exitCode = serializers.IntegerField(allow_null=True)
    outputs = serializers.DictField(allow_null=True)
    cursors = serializers.DictField(child=serializers.CharField(), allow_null=True)
    verdict = serializers.CharField(allow_null=True)
    environment = EnvironmentInput(allow_null=True)


class OrchestrationFailureOutput(serializers.Serializer):
    """The reason of a failure or cancel. `class` is null for a cancel."""

    reason = serializers.ChoiceField(choices=END_REASONS)
    message = serializers.CharField(allow_blank=True)

    def get_fields(self) -> Any:
        """Add the member whose name is a keyword of Python."""
        named = {"class": serializers.ChoiceField(choices=FailureClass.choices, allow_null=True)}
        return super().get_fields() | named


class OrchestrationIncidentOutput(serializers.Serializer):
    """The open incident of a failed job."""

    incidentId = serializers.UUIDField()
    summary = serializers.CharField()
    openedAt = serializers.DateTimeField()


class OrchestrationAttemptOutput(serializers.Serializer):
    """One attempt of a job."""

    attempt = serializers.IntegerField()
    attemptId = serializers.UUIDField(help_text="That of the first attempt is the id of the job.")
    status = serializers.ChoiceField(choices=OrchestrationStatus.choices)
    workerId = serializers.CharField(allow_null=True)
    failure = OrchestrationFailureOutput(allow_null=True)
    createdAt = serializers.DateTimeField()
    startedAt = serializers.DateTimeField(allow_null=True)
    completedAt = serializers.DateTimeField(allow_null=True)


class OrchestrationJobDetailOutput(SubmittedOrchestrationJobOutput):
    """A job with all details."""

    pendingReason = OrchestrationReasonOutput(allow_null=True)
    queuePosition = serializers.IntegerField(allow_null=True)
    progress = serializers.DictField(allow_null=True)
    result = OrchestrationResultOutput(allow_null=True)
    failure = OrchestrationFailureOutput(allow_null=True)
    incident = OrchestrationIncidentOutput(allow_null=True)
    attempts = OrchestrationAttemptOutput(many=True)
    dependencies = serializers.ListField(child=serializers.UUIDField())
    dependents = serializers.ListField(child=serializers.UUIDField(), help_text="The oldest 200.")
    replays = serializers.ListField(child=serializers.UUIDField(), help_text="The newest 200.")


class GraphNodeOutput(serializers.Serializer):
    """A job of a graph."""

    jobId = serializers.UUIDField()
    jobType = serializers.ChoiceField(choices=list(JOB_TYPES))
    status = serializers.ChoiceField(choices=OrchestrationStatus.choices)
    attempt = serializers.IntegerField()
    seconds = serializers.FloatField(help_text="From the start to the end, or until now. 0: it has not started.")
    createdAt = serializers.DateTimeField()
    startedAt = serializers.DateTimeField(allow_null=True)
    completedAt = serializers.DateTimeField(allow_null=True)


class GraphEdgeOutput(serializers.Serializer):
    """A dependency: the job `to` waits for the job `from`."""

    to = serializers.UUIDField()
    needsSuccess = serializers.BooleanField(help_text="False: any end is enough.")

    def get_fields(self) -> Any:
        """Add the member whose name is a keyword of Python."""
        named = {"from": serializers.UUIDField()}
        return named | super().get_fields()


class CriticalPathOutput(serializers.Serializer):
    """The chain of dependencies that has taken longest, in order."""

    jobIds = serializers.ListField(child=serializers.UUIDField())
    seconds = serializers.FloatField()


class JobGraphOutput(serializers.Serializer):
    """The jobs on which a job depends, and those that depend on it."""

    jobId = serializers.UUIDField()
    nodes = GraphNodeOutput(many=True)
    edges = GraphEdgeOutput(many=True)
    criticalPath = CriticalPathOutput()
    truncated = serializers.BooleanField(help_text="True: there are more jobs than the 200 nearest ones.")


class SignatureOutput(serializers.Serializer):
    """A signature of an envelope."""

    keyid = serializers.CharField(help_text="The id of the key, as in `GET /v1/keys`.")
    sig = serializers.CharField(help_text="The Ed25519 signature in base64.")


class EnvelopeOutput(serializers.Serializer):
    """A signed envelope (DSSE 1.0.0)."""

    payload = serializers.CharField(help_text="The in-toto Statement v1 in base64, as it was signed.")
    payloadType = serializers.CharField()
    signatures = SignatureOutput(many=True)
