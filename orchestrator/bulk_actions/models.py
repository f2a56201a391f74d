"""Bulk actions, and each job or incident that one of them concerns."""

from typing import Final

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from runtime_jobs.events import Actor
from runtime_jobs.identifiers import ID_LENGTH, new_bulk_action_id
from runtime_jobs.models import Organization

MAX_REASON_LENGTH: Final = 500
MAX_DETAIL_LENGTH: Final = 500


class BulkStatus(models.TextChoices):
    """The progress of a bulk action."""

    PENDING = "pending"  # counted, and not begun
    RUNNING = "running"
    ABORTING = "aborting"  # a dispatcher applies the last targets
    ABORTED = "aborted"
    COMPLETED = "completed"


OPEN_STATUSES: Final = (BulkStatus.PENDING, BulkStatus.RUNNING, BulkStatus.ABORTING)


class TargetOutcome(models.TextChoices):
    """The result for one target. Targets of an aborted action stay pending."""

    PENDING = "pending"
    DONE = "done"
    REFUSED = "refused"


class BulkAction(models.Model):
    """An operation on many jobs or incidents.

    Attributes:
        action: A name in `orchestrator.bulk_actions.actions.ACTIONS`.
        filters: The filter as it was submitted.
        reason: The reason that the client gave, for the audit log and for each operation.
        actor_kind: The kind of the client or operator. Each operation is recorded as theirs.
        total: The number of targets, counted before the first one is changed.
        claimed_until: A dispatcher applies targets until then.
    """

    id = models.BigAutoField(primary_key=True)
    bulk_action_ulid = models.CharField(
        "bulk action", max_length=ID_LENGTH, unique=True, default=new_bulk_action_id, editable=False
    )
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="bulk_actions")
    action = models.CharField(max_length=20)
    filters = models.JSONField("filter")
    reason = models.CharField(max_length=MAX_REASON_LENGTH)
    actor_kind = models.CharField(max_length=20)
    actor_name = models.CharField(max_length=200)
    source_address = models.GenericIPAddressField(null=True)
    status = models.CharField(max_length=10, choices=BulkStatus.choices, default=BulkStatus.PENDING)
    total = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    claimed_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField("started", null=True)
    advanced_at = models.DateTimeField("last progress", null=True)
    finished_at = models.DateTimeField("finished", null=True)
    aborted_by = models.CharField(max_length=200, blank=True)

    class Meta:
        db_table = "bulk_actions"
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=OPEN_STATUSES, finished_at__isnull=True)
                | (~Q(status__in=OPEN_STATUSES) & Q(finished_at__isnull=False)),
                name="finished_if_ended",
            ),
            models.CheckConstraint(condition=Q(total__gte=F("done") + F("refused")), name="no_target_counts_twice"),
        ]
        indexes = [
            # Dispatchers: the actions that have not ended, the one first that waits longest.
            models.Index(
                F("advanced_at").asc(nulls_first=True),
                name="bulk_actions_open",
                condition=Q(finished_at__isnull=True),
            ),
            # For retention, which deletes old actions.
            models.Index(fields=["finished_at"], name="bulk_actions_by_age", condition=Q(finished_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.action} of {self.total} in {self.organization.slug}"

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"bulk_action:{self.bulk_action_ulid}"

    @property
    def actor(self) -> Actor:
        """The client or operator who requested the action."""
        return Actor(self.actor_kind, self.actor_name)


class BulkTarget(models.Model):
    """One job or incident of a bulk action.

    Attributes:
        subject_ulid: The id of the job or incident.
        error_code: The code of the refusal.
        detail: The text of the refusal.
    """

    id = models.BigAutoField(primary_key=True)
    bulk_action = models.ForeignKey(BulkAction, on_delete=models.CASCADE, related_name="targets", db_index=False)
    subject_ulid = models.CharField(max_length=ID_LENGTH)
    outcome = models.CharField(
        max_length=10,
        choices=TargetOutcome.choices,
        default=TargetOutcome.PENDING,
        db_default=TargetOutcome.PENDING,
    )
    error_code = models.CharField(max_length=60, blank=True, db_default="")
    detail = models.CharField(max_length=MAX_DETAIL_LENGTH, blank=True, db_default="")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "bulk_targets"
        indexes = [
            # Dispatchers: the next targets. The list of refusals.
            models.Index(fields=["bulk_action", "outcome", "id"], name="targets_of_bulk_action"),
        ]

    def __str__(self) -> str:
        return f"{self.subject_ulid}: {self.outcome}"
