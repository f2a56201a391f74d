"""What came through the webhook, one row for each project that it was for. Forgotten by the clock after a while."""

from django.db import models
from django.db.models import Q

from runtime_jobs.identifiers import ID_LENGTH


class Outcome(models.TextChoices):
    CREATED = "created"
    DUPLICATE = "duplicate"
    IGNORED = "ignored"
    REFUSED = "refused"


class WebhookDelivery(models.Model):
    """A delivery whose signature was right. `reason` says why it was ignored or refused.

    Slugs are empty where no project runs the repository. A delivery that made no job is taken afresh when it comes
    again, in the same row."""

    id = models.BigAutoField(primary_key=True)
    delivery_id = models.CharField(max_length=64, null=True)
    event = models.CharField(max_length=64)
    action = models.CharField(max_length=64, blank=True)
    repository = models.CharField(max_length=201, blank=True)
    git_commit = models.CharField(max_length=64, null=True)
    pull_request_number = models.BigIntegerField(null=True)
    org_slug = models.CharField(max_length=63, blank=True)
    project_slug = models.CharField(max_length=63, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices)
    reason = models.CharField(max_length=500, blank=True)
    event_key = models.CharField(max_length=64, null=True)
    batch_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    job_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    source_address = models.GenericIPAddressField(null=True)
    received_at = models.DateTimeField()

    class Meta:
        app_label = "orchestrator"
        db_table = "webhook_deliveries"
        verbose_name_plural = "webhook deliveries"
        constraints = [
            # One job for what a delivery says, however often it is said …
            models.UniqueConstraint(
                fields=["org_slug", "project_slug", "event_key"],
                name="one_job_per_event",
                condition=Q(event_key__isnull=False),
            ),
            # … and one row for a delivery that GitHub sends again.
            models.UniqueConstraint(
                fields=["org_slug", "project_slug", "delivery_id"],
                name="one_row_per_delivery",
                condition=Q(delivery_id__isnull=False) & ~Q(org_slug=""),
            ),
            # Only what made a job keeps others from making one.
            models.CheckConstraint(
                condition=Q(
                    outcome="created", event_key__isnull=False, batch_ulid__isnull=False, job_ulid__isnull=False
                )
                | (~Q(outcome="created") & Q(event_key__isnull=True)),
                name="a_key_where_a_job_was_made",
            ),
        ]
        # For the clock, which forgets old deliveries.
        indexes = [models.Index(fields=["received_at"], name="webhook_deliveries_by_age")]

    def __str__(self) -> str:
        return f"{self.event} {self.delivery_id or self.pk}"
