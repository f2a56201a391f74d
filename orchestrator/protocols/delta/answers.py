"""The shapes of answers, for OpenAPI. What is sent is made in `wire` and `errors`."""

from rest_framework import serializers

from orchestrator.http.errors.error_codes import CODES
from orchestrator.protocols.delta.states import (
    CANCEL,
    CANCELED,
    CATEGORIES,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    STALE,
    STALE_LEASE,
)
from runtime_jobs.states import STATUS, STATUS_WITHOUT_INGEST

WORDS = [INVALID_REQUEST, *CATEGORIES.values(), STALE_LEASE, INTERNAL_ERROR]


def kind(name: str) -> serializers.ChoiceField:
    """The `type` of a message."""
    return serializers.ChoiceField(choices=[name])


class Details(serializers.Serializer):
    """`code` and `request_id` with every error but a stale lease, which has `reason`; the rest with some codes."""

    code = serializers.ChoiceField(choices=list(CODES), required=False, help_text="As in the native API.")
    request_id = serializers.CharField(required=False)
    errors = serializers.DictField(  # type: ignore[assignment] # a field here, not the serializer's own attribute
        child=serializers.ListField(child=serializers.CharField()), required=False, help_text="By field."
    )
    reason = serializers.ChoiceField(choices=list(STALE), required=False)
    job_status = serializers.ChoiceField(
        choices=list(dict.fromkeys([*STATUS.values(), *STATUS_WITHOUT_INGEST.values()])), required=False
    )
    limit = serializers.IntegerField(required=False)


class ErrorTold(serializers.Serializer):
    code = serializers.ChoiceField(choices=WORDS)
    message = serializers.CharField()
    details = Details()
    lease_id = serializers.CharField(required=False, help_text="As it was sent, with a stale lease.")


class DeltaError(serializers.Serializer):
    """The documents' envelope. A stale lease is told in every form that they and the real code know."""

    error = ErrorTold()
    type = serializers.ChoiceField(choices=["StaleLease"], required=False)
    lease_id = serializers.CharField(required=False)
    reason = serializers.ChoiceField(choices=list(dict.fromkeys(STALE.values())), required=False)
    extend_lease = serializers.BooleanField(required=False)
    stale = serializers.BooleanField(required=False)
    new_lease_ttl_seconds = serializers.IntegerField(required=False)
    cancel_requested = serializers.BooleanField(required=False)
    cancel_deadline_seconds = serializers.IntegerField(required=False)


class ArtifactWanted(serializers.Serializer):
    type = serializers.CharField()
    path_glob = serializers.CharField()


class CacheWanted(serializers.Serializer):
    type = serializers.CharField()
    key = serializers.CharField()
    paths = serializers.ListField(child=serializers.CharField())
    read_only = serializers.BooleanField()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields


class SourceWanted(serializers.Serializer):
    kind = serializers.ChoiceField(choices=["github"])
    repo_url = serializers.CharField()
    owner = serializers.CharField()
    repo = serializers.CharField()
    ref = serializers.CharField(allow_null=True)
    git_commit = serializers.CharField()
    pull_request_number = serializers.IntegerField(allow_null=True)


class RunnerSpec(serializers.Serializer):
    name = serializers.CharField()
    workdir = serializers.CharField()
    steps = serializers.ListField(child=serializers.CharField())
    env = serializers.DictField(child=serializers.CharField())
    artifacts = ArtifactWanted(many=True)
    caches = CacheWanted(many=True)
    image = serializers.CharField(required=False)
    source = SourceWanted(required=False, help_text="The commit to check out.")  # type: ignore[assignment] # a field


class LeaseGranted(serializers.Serializer):
    type = kind("LeaseGranted")
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
    type = kind("LeaseAccepted")
    lease_id = serializers.CharField()
    job_id = serializers.CharField()
    heartbeat_interval_seconds = serializers.IntegerField()
    max_runtime_seconds = serializers.IntegerField()


class HeartbeatAck(serializers.Serializer):
    type = kind("HeartbeatAck")
    lease_id = serializers.CharField()
    extend_lease = serializers.BooleanField()
    new_lease_ttl_seconds = serializers.IntegerField()
    cancel_requested = serializers.BooleanField()
    cancel_deadline_seconds = serializers.IntegerField(help_text="What is left; 0 without a cancel.")
    cancel_reason = serializers.ChoiceField(choices=list(dict.fromkeys(CANCEL.values())), required=False)


class CompleteAck(serializers.Serializer):
    type = kind("CompleteAck")
    lease_id = serializers.CharField()
    accepted = serializers.BooleanField(help_text="False: a cancel was faster, the result does not count.")


class CancelFinalized(serializers.Serializer):
    type = kind("CancelFinalized")
    lease_id = serializers.CharField()
    job_id = serializers.CharField()
    final_status = serializers.ChoiceField(choices=[CANCELED])
