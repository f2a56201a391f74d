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


class CommitAuthorPayload(serializers.Serializer):
    """`author` of a commit."""

    name = serializers.CharField(required=False, default="", allow_blank=True, trim_whitespace=False)


class HeadCommitPayload(serializers.Serializer):
    """`head_commit` of a push."""

    id = StrictCharField(check=validators.validate_commit)
    message = StrictCharField(required=False, default="", allow_blank=True)
    author = CommitAuthorPayload(required=False, allow_null=True, default=None)


class PushWorkflowPayload(serializers.Serializer):
    """Event `push`, for workflows."""

    ref = StrictCharField(max_length=256, check=validators.validate_ref)
    before = StrictCharField(pattern="([0-9a-f]{40}|[0-9a-f]{64})", help_text="Zeros for a new branch or tag.")
    after = StrictCharField(check=validators.validate_commit)
    head_commit = HeadCommitPayload(required=False, allow_null=True, default=None)


class PullRequestSidePayload(serializers.Serializer):
    """`head` or `base` of a pull request."""

    ref = StrictCharField(max_length=256)
    sha = StrictCharField(check=validators.validate_commit)


class PullRequestUserPayload(serializers.Serializer):
    """`user` of a pull request."""

    login = StrictCharField(max_length=100)


class PullRequestFactsPayload(serializers.Serializer):
    """`pull_request` of an event, for workflows."""

    title = StrictCharField(required=False, default="", allow_blank=True)
    head = PullRequestSidePayload()
    base = PullRequestSidePayload()
    user = PullRequestUserPayload(required=False, allow_null=True, default=None)


class PullRequestWorkflowPayload(serializers.Serializer):
    """Event `pull_request`, for workflows."""

    number = StrictIntegerField(min_value=1, max_value=BIGINT)
    pull_request = PullRequestFactsPayload()


class WebhookResultOutput(serializers.Serializer):
    """`run_id` and `state` of the run. If the run was refused: only `refused`, the error code."""

    run_id = serializers.CharField(required=False)
    state = serializers.ChoiceField(choices=RUN_STATES, required=False)
    refused = serializers.CharField(required=False)
