"""The table that this protocol needs for its wire alone: the heartbeats of each runner in the current minute."""

from django.db import models


class HeartbeatWindow(models.Model):
    """The heartbeats of a runner in a window of fixed length, counted over all processes."""

    runner_id = models.BigIntegerField(primary_key=True)
    started_at = models.DateTimeField()
    number = models.PositiveIntegerField()

    class Meta:
        app_label = "orchestrator"
        db_table = "actions_heartbeat_windows"

    def __str__(self) -> str:
        return f"{self.number} since {self.started_at}"
