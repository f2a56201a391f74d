"""Deliveries of the webhook: one row per delivery and project. The scheduler process deletes old ones."""

from django.db import models
from django.db.models import Q

from runtime_jobs.identifiers import ID_LENGTH


class Outcome(models.TextChoices):
    """Outcome of a delivery for one project."""

    CREATED = "created"
    ACCEPTED = "accepted"  # workflow files of the commit are read later
    DUPLICATE = "duplicate"
    IGNORED = "ignored"
    REFUSED = "refused"


class WebhookDelivery(models.Model):
    """A delivery with a valid signature. `reason` is why it was ignored or refused.

    The slugs are empty if no project runs the repository. A redelivery of one that made no job is evaluated again, and
    overwrites its row.
    """

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
        verbose_name = "GitHub delivery"
        verbose_name_plural = "GitHub deliveries"
        constraints = [
            # One job per event and project, however often it is delivered.
            models.UniqueConstraint(
                fields=["org_slug", "project_slug", "event_key"],
                name="one_job_per_event",
                condition=Q(event_key__isnull=False),
            ),
            # One row per delivery and project, however often it is redelivered.
            models.UniqueConstraint(
                fields=["org_slug", "project_slug", "delivery_id"],
                name="one_row_per_delivery",
                condition=Q(delivery_id__isnull=False) & ~Q(org_slug=""),
            ),
            # Only a delivery that made a job prevents others from making one.
            models.CheckConstraint(
                condition=Q(
                    outcome="created", event_key__isnull=False, batch_ulid__isnull=False, job_ulid__isnull=False
                )
                | (~Q(outcome="created") & Q(event_key__isnull=True)),
                name="a_key_where_a_job_was_made",
            ),
        ]
        # For the retention of old deliveries.
        indexes = [models.Index(fields=["received_at"], name="webhook_deliveries_by_age")]

    def __str__(self) -> str:
        return f"{self.event} {self.delivery_id or self.pk}"
