"""Responses to users. The classes are schema only."""

from rest_framework import serializers

from runtime_jobs.states import Conclusion


class CancelDocument(serializers.Serializer):
    """The result of a request to cancel a job. `run_conclusion` is empty while a job of the run has not ended."""

    job_id = serializers.IntegerField()
    run_id = serializers.IntegerField()
    repo_id = serializers.IntegerField()
    changed_jobs = serializers.IntegerField(help_text="0 for a repetition, and for a job that has ended.")
    run_completed = serializers.BooleanField()
    run_conclusion = serializers.ChoiceField(choices=Conclusion.choices, allow_blank=True)


class RerunDocument(serializers.Serializer):
    """A run that runs the workflow file of another run again, at the same commit."""

    run_id = serializers.IntegerField()
    run_index = serializers.IntegerField()
    parent_run_id = serializers.IntegerField()
    repo_id = serializers.IntegerField()
    workflow_file = serializers.CharField()
    head_sha = serializers.CharField()
