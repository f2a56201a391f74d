"""Counts for Prometheus: rows and not variables, so that every process serves the same values."""

from django.db import models

from runtime_jobs.db_functions import TransactionId


class Count(models.Model):
    """One value of a metric with its labels.

    `detail`: a reason, a phase, a kind. `bound`: the upper bound of a histogram's bucket; each observation is in the
    lowest bucket that contains it. `org_slug`: empty except for the tenants in `METRICS_TENANTS`.
    """

    name = models.CharField(max_length=40)
    job_type = models.CharField(max_length=50, blank=True)
    detail = models.CharField(max_length=40, blank=True)
    org_slug = models.CharField(max_length=63, blank=True)
    bound = models.FloatField(default=0)
    value = models.FloatField(default=0)

    class Meta:
        db_table = "metric_counts"
        constraints = [
            models.UniqueConstraint(fields=["name", "job_type", "detail", "org_slug", "bound"], name="one_metric_count")
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.job_type} {self.detail}: {self.value:g}"


class MetricsPosition(models.Model):
    """The position up to which events and heartbeats are counted. One row."""

    id = models.SmallAutoField(primary_key=True)
    xid = TransactionId()
    event_id = models.BigIntegerField()
    beats_until = models.DateTimeField()

    class Meta:
        db_table = "metric_place"

    def __str__(self) -> str:
        return f"{self.xid}/{self.event_id}"
