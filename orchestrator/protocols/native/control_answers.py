"""The shapes of answers about limits, breakers, incidents and pools, for OpenAPI. What is sent is in `control_wire`."""

from rest_framework import serializers

from leases.models import BreakerState, LimitKind, LimitScope
from orchestrator.protocols.native.answers import ActorShown
from runtime_jobs.specs import JOB_TYPES


class LimitShown(serializers.Serializer):
    limit_id = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=[str(kind) for kind in LimitKind])
    scope = serializers.ChoiceField(choices=[str(scope) for scope in LimitScope])
    org_slug = serializers.CharField(allow_null=True)
    key = serializers.CharField(help_text="A job type or `*`, a project, a pool …: in the words of the scope.")
    max_active = serializers.IntegerField(allow_null=True)
    running = serializers.IntegerField(allow_null=True, help_text="Of them; null where it does not count.")
    per_hour = serializers.IntegerField(allow_null=True)
    burst = serializers.IntegerField(allow_null=True)
    next_start_at = serializers.DateTimeField(
        allow_null=True, help_text="When time alone lets one start; null: now, or when a job ends or somebody acts."
    )
    until = serializers.DateTimeField(allow_null=True, help_text="From then on it holds nobody.")
    waiting = serializers.BooleanField(help_text="Jobs wait because of it.")
    reason = serializers.CharField(allow_blank=True)
    set_by = ActorShown(allow_null=True)
    set_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField(help_text="As in the ETag.")


class BreakerShown(serializers.Serializer):
    org_slug = serializers.CharField()
    job_type = serializers.ChoiceField(choices=list(JOB_TYPES))
    state = serializers.ChoiceField(choices=[str(state) for state in BreakerState])
    opened_at = serializers.DateTimeField(allow_null=True)
    next_probe_at = serializers.DateTimeField(allow_null=True, help_text="When one job is tried.")


class IncidentShown(serializers.Serializer):
    incident_id = serializers.CharField()
    kind = serializers.ChoiceField(choices=["breaker"])
    org_slug = serializers.CharField()
    job_type = serializers.ChoiceField(choices=list(JOB_TYPES))
    summary = serializers.CharField()
    opened_at = serializers.DateTimeField()
    resolved_at = serializers.DateTimeField(allow_null=True)
    resolved_by = ActorShown(allow_null=True)
