"""Requests and responses of `/v1/pools`. `wire.py` builds the responses; their classes are schema only."""

from rest_framework import serializers

from orchestrator.http.api.fields import StrictChoiceField
from orchestrator.protocols.native.limits.serializers import ReasonInput
from runtime_jobs.models.tenants import ISOLATION_CHOICES, JobTrace
from workers.registry.models import PoolPolicy


class ChangePoolInput(ReasonInput):
    """PATCH /v1/pools/{pool}."""

    policy = StrictChoiceField(choices=[str(policy) for policy in PoolPolicy])


class PoolOutput(serializers.Serializer):
    """A pool of workers."""

    pool = serializers.CharField()
    description = serializers.CharField()
    policy = serializers.ChoiceField(choices=PoolPolicy.values)
    aging = serializers.BooleanField(help_text="True: waiting raises the priority of a job. False: strict order.")
    least_isolation = serializers.ChoiceField(choices=ISOLATION_CHOICES)
    trace = serializers.ChoiceField(
        choices=JobTrace.choices,
        allow_null=True,
        help_text="Of jobs that do not say it, and whose project does not. Null: as the job type says.",
    )


class PoolWorkersOutput(serializers.Serializer):
    """Number of workers of a pool by state."""

    active = serializers.IntegerField(help_text="Active, with a request within the last minute.")
    silent = serializers.IntegerField(help_text="Active, without a request for more than a minute.")
    draining = serializers.IntegerField()
    maintenance = serializers.IntegerField()


class PoolLoadOutput(serializers.Serializer):
    """Load of a pool, for autoscalers."""

    pool = serializers.CharField()
    queued = serializers.IntegerField(help_text="Waiting jobs; counts at most 10000.")
    servable = serializers.IntegerField(
        help_text="Waiting jobs that no limit, rate or pause blocks; counts at most 10000."
    )
    capped = serializers.BooleanField(help_text="True if more jobs wait than are counted.")
    running = serializers.IntegerField()
    idle_slots = serializers.IntegerField(help_text="Free slots of active workers.")
    workers = PoolWorkersOutput()
    oldest_wait_seconds = serializers.FloatField(help_text="0 if no job waits.")
    starts_per_minute = serializers.IntegerField(
        help_text="Jobs leased in the last minute; counts at most 20000 starts of all pools."
    )
    at = serializers.DateTimeField(help_text="When the load was measured, by the clock of the database.")
