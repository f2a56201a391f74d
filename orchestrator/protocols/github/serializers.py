"""The parts of GitHub's payloads that are used, and the response to a delivery."""

from rest_framework import serializers

from orchestrator.http.api.fields import StrictBooleanField, StrictCharField, StrictIntegerField
from runtime_jobs import validators
from runtime_jobs.states import JobState

BIGINT = 2**63 - 1
# State of a run in the terms of document 001. A run of the webhook has one job; its newest attempt decides.
FINAL_STATES = {JobState.SUCCEEDED: "SUCCESS", JobState.FAILED: "FAILED", JobState.CANCELED: "CANCELED"}
RUN_STATES = ["QUEUED", "RUNNING", "CANCEL_REQUESTED", "TIMEOUT", *FINAL_STATES.values()]


class ActionPayload(serializers.Serializer):
    """`action` of an event."""

    action = StrictCharField(max_length=64, pattern="[a-z_]+")


class HeadPayload(serializers.Serializer):
    """`head` of a pull request."""

    sha = StrictCharField(check=validators.validate_commit)


class PullRequestPayload(serializers.Serializer):
    """`pull_request` of an event."""

    head = HeadPayload()


class PullRequestEventPayload(serializers.Serializer):
    """Event `pull_request`."""

    number = StrictIntegerField(min_value=1, max_value=BIGINT)
    pull_request = PullRequestPayload()


class PushEventPayload(serializers.Serializer):
    """Event `push`."""

    ref = StrictCharField(required=False, default="", allow_blank=True)
    after = StrictCharField(required=False, default="", allow_blank=True, max_length=64)
    deleted = StrictBooleanField(required=False, default=False)


class WebhookResultOutput(serializers.Serializer):
    """`run_id` and `state` of the run. If the run was refused: only `refused`, the error code."""

    run_id = serializers.CharField(required=False)
    state = serializers.ChoiceField(choices=RUN_STATES, required=False)
    refused = serializers.CharField(required=False)
