"""Requests and responses of the steps of a leased workflow job."""

from rest_framework import serializers

from orchestrator.http.api.fields import StrictBooleanField, StrictCharField, StrictChoiceField, StrictSerializer
from runtime_jobs.states import Conclusion


class StepEndInput(StrictSerializer):
    """The end of a step that has an id."""

    outcome = StrictChoiceField(choices=["success", "failure", "skipped"])
    conclusion = StrictChoiceField(choices=["success", "failure", "skipped"])
    outputs = serializers.DictField(child=StrictCharField(allow_blank=True, trim_whitespace=False))


class BeginStepInput(StrictSerializer):
    """POST /v1/runtime/leases/{lease_id}/steps/{index}/begin."""

    has_failed = StrictBooleanField(help_text="Whether a step before has failed the job.")
    env = serializers.DictField(
        child=StrictCharField(allow_blank=True, trim_whitespace=False),
        required=False,
        default=dict,
        help_text="Variables that steps before have set for later steps.",
    )
    steps = serializers.DictField(
        child=StepEndInput(), required=False, default=dict, help_text="The ends of the steps before, by their ids."
    )


class EndStepInput(StrictSerializer):
    """POST /v1/runtime/leases/{lease_id}/steps/{index}/end."""

    conclusion = StrictChoiceField(choices=Conclusion.values)


class StartedStepsOutput(serializers.Serializer):
    """Facts that a worker needs before the first step."""

    repository = serializers.CharField(help_text="`owner/name` of the repository on this server.")
    head_sha = serializers.CharField()
    checkout_token = serializers.CharField(help_text="The password with which git reads the repository.")
    step_count = serializers.IntegerField()


class StepOrderOutput(serializers.Serializer):
    """Evaluated texts of a step, which the worker executes."""

    is_skipped = serializers.BooleanField()
    error = serializers.CharField(help_text="Why the step fails without being executed, or empty.")
    run = serializers.CharField()
    uses = serializers.CharField()
    with_values = serializers.DictField(child=serializers.CharField())
    working_directory = serializers.CharField()
    environment = serializers.DictField(child=serializers.CharField())
    continue_on_error = serializers.BooleanField()
    step_id = serializers.CharField(help_text="The id of the step, or empty.")
    shell = serializers.CharField(help_text="`bash`, `sh`, `python`, or empty.")
