"""The ledger of billed minutes. A trigger keeps it append-only."""

from django.db import models

from runtime_jobs.identifiers import ID_LENGTH


class UsageRecord(models.Model):
    """Minutes of execution that were billed at once: the minutes up to `minute` that no earlier record of the job has.

    The record stays when retention deletes its job, so its columns are copies.

    Attributes:
        minute: The number of the last minute of the execution that is billed, from 1.
        minutes: The number of minutes of this record.
        billed_until: The time of the execution up to which they count.
    """

    id = models.BigAutoField(primary_key=True)
    job_ulid = models.CharField(max_length=ID_LENGTH)
    org_slug = models.CharField(max_length=63)
    project_slug = models.CharField(max_length=63)
    job_type = models.CharField(max_length=50)
    minute = models.PositiveIntegerField()
    minutes = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    billed_until = models.DateTimeField()
    recorded_at = models.DateTimeField()

    WRITTEN_WITH_CHANGES = True

    class Meta:
        db_table = "usage_records"
        constraints = [
            models.UniqueConstraint(fields=["job_ulid", "minute"], name="one_usage_record_per_minute"),
            models.CheckConstraint(
                condition=models.Q(minutes__gte=1, minute__gte=models.F("minutes")), name="usage_record_has_minutes"
            ),
        ]
        # The usage of an organization, newest first.
        indexes = [models.Index(fields=["org_slug", "-id"], name="usage_of_organization")]

    def __str__(self) -> str:
        return f"{self.job_ulid} minute {self.minute}"
