"""Responses of `/api/dashboard/metrics`. `wire.py` builds them; the classes are schema only."""

from rest_framework import serializers

from leases.models import BreakerState
from orchestrator.incidents.models import IncidentKind, IncidentStatus
from orchestrator.protocols.stella.serializers import SetByOutput
from runtime_jobs.specs import JOB_TYPES


class JobTotalsOutput(serializers.Serializer):
    """Jobs that have not ended, by status."""

    created = serializers.IntegerField(help_text="Jobs that wait for others.")
    queued = serializers.IntegerField()
    throttled = serializers.IntegerField(help_text="Jobs that a limit, rate, pause or breaker stops now.")
    leased = serializers.IntegerField()
    running = serializers.IntegerField()


class EndedTotalsOutput(serializers.Serializer):
    """Jobs that ended in the last hour."""

    completed = serializers.IntegerField()
    failed = serializers.IntegerField()
    canceled = serializers.IntegerField()
    queueSeconds = serializers.FloatField(allow_null=True, help_text="Mean time in the queue. Null: no job ended.")
    runSeconds = serializers.FloatField(allow_null=True, help_text="Mean time on a worker.")


class JobTypeTotalsOutput(serializers.Serializer):
    """The same numbers of one job type."""

    jobType = serializers.ChoiceField(choices=list(JOB_TYPES))
    jobs = JobTotalsOutput()
    oldestQueuedAt = serializers.DateTimeField(allow_null=True)
    lastHour = EndedTotalsOutput()


class FailureTotalsOutput(serializers.Serializer):
    """Failures of the last hour for one reason."""

    reason = serializers.CharField()
    count = serializers.IntegerField()


class RestrictedSourceOutput(serializers.Serializer):
    """A source that is paused or throttled."""

    sourceId = serializers.CharField()
    status = serializers.ChoiceField(choices=["paused", "throttled"])
    until = serializers.DateTimeField(allow_null=True)
    setBy = SetByOutput(allow_null=True)
    reason = serializers.CharField(allow_blank=True)


class OpenBreakerOutput(serializers.Serializer):
    """A circuit breaker that is not closed."""

    tenant = serializers.CharField()
    jobType = serializers.ChoiceField(choices=list(JOB_TYPES))
    state = serializers.ChoiceField(choices=[str(state) for state in BreakerState if state != BreakerState.CLOSED])
    openedAt = serializers.DateTimeField(allow_null=True)
    nextProbeAt = serializers.DateTimeField(allow_null=True)


class DashboardIncidentOutput(serializers.Serializer):
    """An incident that is not resolved."""

    incidentId = serializers.UUIDField()
    kind = serializers.ChoiceField(choices=[str(kind) for kind in IncidentKind])
    status = serializers.ChoiceField(choices=[str(IncidentStatus.OPEN), str(IncidentStatus.ACKNOWLEDGED)])
    tenant = serializers.CharField()
    jobType = serializers.CharField(allow_blank=True)
    attemptId = serializers.UUIDField(
        allow_null=True, help_text="The attempt that failed; the id of the job if it is the first."
    )
    reason = serializers.CharField(allow_null=True)
    summary = serializers.CharField()
    openedAt = serializers.DateTimeField()


class IncidentTotalsOutput(serializers.Serializer):
    """Incidents that are not resolved."""

    count = serializers.IntegerField(help_text="Counted up to 1,000.")
    newest = DashboardIncidentOutput(many=True)


class DashboardOutput(serializers.Serializer):
    """Numbers of now and of the last hour."""

    measuredAt = serializers.DateTimeField()
    tenants = serializers.ListField(child=serializers.CharField(), allow_null=True, help_text="Null: all tenants.")
    jobs = JobTotalsOutput()
    lastHour = EndedTotalsOutput()
    jobTypes = JobTypeTotalsOutput(many=True, help_text="Job types without any job are left out.")
    failures = FailureTotalsOutput(many=True)
    sources = RestrictedSourceOutput(many=True, help_text="At most 50, the newest first.")
    breakers = OpenBreakerOutput(many=True, help_text="At most 50.")
    incidents = IncidentTotalsOutput()
