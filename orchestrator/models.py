"""The orchestrator's own rows: the clock's heartbeat and incidents here, runs in `orchestrator.ingest`, a protocol's
own beside it."""

from django.db import models

from orchestrator.access.login_attempts import LoginAttempts
from orchestrator.ingest.models import Run
from orchestrator.protocols.github.models import WebhookDelivery
from orchestrator.tally.models import Count, Place
from runtime_jobs.identifiers import ID_LENGTH, new_incident_id

__all__ = ["ClockBeat", "Count", "Incident", "LoginAttempts", "Place", "Run", "WebhookDelivery"]


class ClockBeat(models.Model):
    """When the leading clock last finished a round: `/readyz` and the admin's first page look at it."""

    id = models.SmallAutoField(primary_key=True)
    leader = models.CharField(max_length=100)
    beat_at = models.DateTimeField()

    class Meta:
        db_table = "clock_beats"

    def __str__(self) -> str:
        return f"{self.leader} at {self.beat_at}"


class Incident(models.Model):
    """Something that an operator should know of, until it is resolved: a breaker that opened (document 004)."""

    incident_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_incident_id, editable=False)
    kind = models.CharField(max_length=20, choices=[("breaker", "breaker")])
    org_slug = models.CharField(max_length=63)
    job_type = models.CharField(max_length=50)
    summary = models.CharField(max_length=500)
    opened_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.CharField(max_length=200, blank=True)

    class Meta:
        db_table = "incidents"
        indexes = [
            models.Index(fields=["org_slug", "job_type"], name="incidents_open", condition=models.Q(resolved_at=None)),
        ]

    def __str__(self) -> str:
        return self.summary
