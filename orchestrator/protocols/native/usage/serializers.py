"""Responses of `/v1/usage`, as schema. `wire.py` builds them."""

from rest_framework import serializers

from runtime_jobs.specs import JOB_TYPES


class UsageRecordOutput(serializers.Serializer):
    """Minutes of a job that were billed at once. Records are never changed."""

    job_id = serializers.CharField()
    org_slug = serializers.CharField()
    project_slug = serializers.CharField()
    job_type = serializers.ChoiceField(choices=list(JOB_TYPES))
    minute = serializers.IntegerField(help_text="Number of the last billed minute of the job, from 1.")
    minutes = serializers.IntegerField(help_text="Minutes of this record.")
    started_at = serializers.DateTimeField(help_text="When the execution began.")
    billed_until = serializers.DateTimeField(help_text="Time of the execution up to which the minutes count.")
    recorded_at = serializers.DateTimeField()
