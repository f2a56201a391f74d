"""The beat of the scheduler process."""

from django.db import models


class ClockBeat(models.Model):
    """The scheduler process that leads, and its last beat, in one row: see `processes.leadership`.

    `/readyz` and the dashboard read the beat. A stand-by takes over a row that is released, whose beat is old, or whose
    session (`backend_*`) has ended, and raises the term.
    """

    id = models.SmallAutoField(primary_key=True)
    leader = models.CharField(max_length=100)
    beat_at = models.DateTimeField()
    # With defaults of the database: a scheduler of the release before writes this row without them.
    term = models.BigIntegerField(db_default=0)
    backend_pid = models.IntegerField(null=True)
    backend_started_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "clock_beats"

    def __str__(self) -> str:
        return f"{self.leader} at {self.beat_at}"
