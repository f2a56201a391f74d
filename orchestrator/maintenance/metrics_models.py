"""What has been counted so far, for Prometheus: rows and not variables, so that every process tells the same."""

from django.db import models

from runtime_jobs.db_functions import TransactionId


class Count(models.Model):
    """`detail`: a reason, a phase, a kind. `bound`: of a histogram's bucket, each observation in the lowest that holds
    it. `org_slug`: empty but for the tenants that a setting names."""

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


class Place(models.Model):
    """How far the trail has been counted, and up to when the heartbeats. One row."""

    id = models.SmallAutoField(primary_key=True)
    xid = TransactionId()
    event_id = models.BigIntegerField()
    beats_until = models.DateTimeField()

    class Meta:
        db_table = "metric_place"

    def __str__(self) -> str:
        return f"{self.xid}/{self.event_id}"
