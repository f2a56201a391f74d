"""Requests and responses of replays. `wire.py` builds the responses; their classes are schema only."""

from rest_framework import serializers

from orchestrator.evidence.replay_models import ReplayVerdict
from orchestrator.http.api.fields import SanitizedTextField, StrictBooleanField, StrictChoiceField, StrictSerializer
from orchestrator.protocols.stella.jobs.serializers import PRIORITIES
from orchestrator.protocols.stella.serializers import MAX_REASON_LENGTH


class ReplayInput(StrictSerializer):
    """POST /api/jobs/{id}/replay."""

    reason = SanitizedTextField(max_length=MAX_REASON_LENGTH, help_text="Recorded in the event history of the replay.")
    priority = StrictChoiceField(
        choices=PRIORITIES,
        required=False,
        default=None,
        allow_null=True,
        help_text="Default: the priority of the plan.",
    )
    sealed = StrictBooleanField(
        required=False,
        default=False,
        help_text="Refuse the replay unless everything that the job has used is fixed. The worker uses no network.",
    )


class ReplayDifferenceOutput(serializers.Serializer):
    """A place at which two manifests differ. `(missing)` is the value where one of them has no such member."""

    path = serializers.CharField(help_text="JSON Pointer (RFC 6901).")
    expected = serializers.JSONField(allow_null=True)
    found = serializers.JSONField(allow_null=True)


class ReplayRecordOutput(serializers.Serializer):
    """The replay record of document 004, section 7.3, with `sealed`."""

    jobId = serializers.UUIDField()
    replayOf = serializers.UUIDField()
    priority = serializers.ChoiceField(choices=PRIORITIES)
    reason = serializers.CharField()
    requestedBy = serializers.CharField()
    cursors = serializers.DictField(child=serializers.CharField())
    sealed = serializers.BooleanField()


class ReplayOutput(ReplayRecordOutput):
    """A replay with its verdict, which is null until the replay has ended and was compared."""

    verdict = serializers.ChoiceField(choices=ReplayVerdict.choices, allow_null=True)
    difference = ReplayDifferenceOutput(allow_null=True, help_text="The first difference of the outputs.")
    reasons = serializers.ListField(child=serializers.CharField(), help_text="Why the replay verifies nothing.")
    notes = ReplayDifferenceOutput(many=True, help_text="Differences of environment and logs, which decide nothing.")
    createdAt = serializers.DateTimeField()
    decidedAt = serializers.DateTimeField(allow_null=True)


class ManifestOutput(serializers.Serializer):
    """The manifest of an ended job. With `signed=true` the response is a DSSE envelope with it."""

    schemaVersion = serializers.CharField()
    jobType = serializers.CharField()
    inputs = serializers.DictField()
    environment = serializers.DictField()
    outputs = serializers.DictField()
    inconclusive = serializers.ListField(
        child=serializers.CharField(), help_text="Why the outputs of the job cannot be compared."
    )
    logs = serializers.DictField()
