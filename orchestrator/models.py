"""The orchestrator's own rows: the clock's heartbeat here, runs in `orchestrator.ingest`, a protocol's own
beside it."""

from django.db import models

from orchestrator.ingest.models import Run
from orchestrator.protocols.github.models import WebhookDelivery

__all__ = ["ClockBeat", "Run", "WebhookDelivery"]


class ClockBeat(models.Model):
    """When the leading clock last finished a round: `/readyz` and the admin's first page look at it."""

    id = models.SmallAutoField(primary_key=True)
    leader = models.CharField(max_length=100)
    beat_at = models.DateTimeField()

    class Meta:
        db_table = "clock_beats"

    def __str__(self) -> str:
        return f"{self.leader} at {self.beat_at}"
