"""The request and response of a heartbeat. `wire.py` builds the response; its classes are schema only."""

from rest_framework import serializers

from orchestrator.http.api.fields import StrictCharField, StrictIntegerField, StrictSerializer


class ActionsHeartbeatInput(StrictSerializer):
    """`POST /api/v1/runners/heartbeat`. Every member may be absent, and so may the body."""

    labels = serializers.ListField(
        child=StrictCharField(allow_blank=True),
        required=False,
        allow_null=True,
        default=None,
        help_text="Replace the stored labels. Absent: these stay. An empty list: only jobs without `runs-on`.",
    )
    capacity = StrictIntegerField(
        required=False, allow_null=True, default=None, help_text="1 to 64. Absent or 0: the stored one."
    )
    host_name = StrictCharField(required=False, allow_null=True, allow_blank=True, default=None)
    version = StrictCharField(required=False, allow_null=True, allow_blank=True, default=None)
    active_job_ids = serializers.ListField(
        child=StrictIntegerField(),
        required=False,
        allow_null=True,
        default=None,
        help_text="The jobs that the runner executes. A job that it began and that is not listed ends as cancelled.",
    )


class StepDocument(serializers.Serializer):
    """A step of a claimed job."""

    id = serializers.IntegerField()
    index = serializers.IntegerField()
    step_id = serializers.CharField()
    name = serializers.CharField()
    run = serializers.CharField()
    uses = serializers.CharField()
    working_directory = serializers.CharField()
    env = serializers.DictField(child=serializers.CharField())
    continue_on_error = serializers.BooleanField()

    def get_fields(self) -> dict[str, serializers.Field]:
        """Add the members whose names are words of Python."""
        fields = super().get_fields()
        fields["if"] = serializers.CharField()
        fields["with"] = serializers.DictField(child=serializers.CharField())
        return fields


class JobDocument(serializers.Serializer):
    """A claimed job."""

    id = serializers.IntegerField()
    run_id = serializers.IntegerField()
    repo_id = serializers.IntegerField()
    run_index = serializers.IntegerField()
    workflow_file = serializers.CharField()
    workflow_name = serializers.CharField()
    checkout_url = serializers.CharField()
    checkout_token = serializers.CharField()
    head_sha = serializers.CharField()
    head_ref = serializers.CharField()
    event = serializers.CharField()
    event_payload = serializers.DictField()
    job_key = serializers.CharField()
    job_name = serializers.CharField()
    runs_on = serializers.CharField()
    needs = serializers.ListField(child=serializers.CharField())
    timeout_minutes = serializers.IntegerField()
    permissions = serializers.DictField()
    secrets = serializers.DictField(child=serializers.CharField(), allow_null=True)
    mask_values = serializers.ListField(child=serializers.CharField(), allow_null=True)
    env = serializers.DictField(child=serializers.CharField())
    variables = serializers.DictField(child=serializers.CharField(), allow_null=True)
    environment = serializers.CharField()
    environment_url = serializers.CharField()
    steps = StepDocument(many=True)

    def get_fields(self) -> dict[str, serializers.Field]:
        """Add the member whose name is a word of Python."""
        fields = super().get_fields()
        fields["if"] = serializers.CharField()
        return fields


class ClaimDocument(serializers.Serializer):
    """The response to a heartbeat that claims a job."""

    token = serializers.CharField()
    expires_at = serializers.DateTimeField()
    job = JobDocument()
