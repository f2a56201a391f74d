"""Requests and responses of `/runs/{runId}/…`. `wire.py` builds the responses; their classes are schema only."""

from rest_framework import serializers

from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictCharField,
    StrictChoiceField,
    StrictDecimalField,
    StrictIntegerField,
    StrictSerializer,
)
from runtime_jobs.orchestration_status import OrchestrationStatus
from runtime_jobs.states import RUNNING_STATES, CancelReason


class RunProgressInput(StrictSerializer):
    """Progress of a run, for display."""

    percent = StrictDecimalField(required=False, min_value=0, max_value=100)
    currentStep = SanitizedTextField(required=False, max_length=200)
    stepIndex = StrictIntegerField(required=False, min_value=0, max_value=100_000)
    message = SanitizedTextField(required=False, allow_blank=True, max_length=1000)


class RunHeartbeatInput(StrictSerializer):
    """POST /runs/{runId}/heartbeat."""

    leaseId = StrictCharField(max_length=64, help_text="The id of the lease, as the claim has returned it.")
    phase = StrictChoiceField(choices=[str(state) for state in RUNNING_STATES], required=False, default=None)
    progress = RunProgressInput(required=False, default=None)


class RunHeartbeatOutput(serializers.Serializer):
    """New expiry of the lease, and the cancel request if there is one."""

    runId = serializers.UUIDField()
    status = serializers.ChoiceField(choices=OrchestrationStatus.choices)
    leaseExpiresAt = serializers.DateTimeField()
    cancelRequested = serializers.BooleanField()
    cancelReason = serializers.ChoiceField(choices=CancelReason.choices, allow_null=True)
    cancelDeadlineSeconds = serializers.FloatField(allow_null=True)


class RunArtifactOutput(serializers.Serializer):
    """A complete artifact of a run."""

    name = serializers.CharField()
    attempt = serializers.IntegerField()
    sizeBytes = serializers.IntegerField()
    sha256 = serializers.CharField(allow_null=True, help_text="Null if the object is in a bucket.")
    createdAt = serializers.DateTimeField()
    expiresAt = serializers.DateTimeField(allow_null=True)
    path = serializers.CharField(help_text="Path of the download. It answers with the newest artifact of the name.")
