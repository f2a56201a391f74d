"""Responses of `/api/sources`. `wire.py` builds them; the classes are schema only."""

from rest_framework import serializers

from orchestrator.protocols.stella.serializers import SetByOutput
from orchestrator.selectors.sources import STATUSES
from runtime_jobs.specs import JOB_TYPES


class JobSourceOutput(serializers.Serializer):
    """A source of jobs: a tenant, one of its job types, or one of its projects, with the pause or throttle on it."""

    sourceId = serializers.CharField(help_text="`{tenant}:*`, `{tenant}:{jobType}` or `{tenant}/{project}`.")
    tenant = serializers.CharField(allow_null=True, help_text="Null: all tenants, which only operators see.")
    jobType = serializers.ChoiceField(choices=list(JOB_TYPES), allow_null=True)
    project = serializers.CharField(allow_null=True)
    status = serializers.ChoiceField(choices=list(STATUSES))
    until = serializers.DateTimeField(allow_null=True, help_text="When the pause or throttle ends by itself.")
    maxPerHour = serializers.IntegerField(allow_null=True, help_text="Starts per hour while it is throttled.")
    burst = serializers.IntegerField(allow_null=True)
    setBy = SetByOutput(allow_null=True)
    setAt = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField(allow_blank=True)
    queued = serializers.IntegerField(help_text="Queued jobs, counted up to a bound of 100,000 for the page.")
