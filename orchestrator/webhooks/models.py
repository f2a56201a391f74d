"""Webhooks of organizations, rules of notifications, and what is sent to whom."""

from typing import Any, Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from orchestrator.core.managed_rows import ManagedRow
from runtime_jobs.db_functions import TransactionId
from runtime_jobs.identifiers import ID_LENGTH, new_delivery_id, new_rule_id, new_webhook_id
from runtime_jobs.models import Organization

MAX_URL_LENGTH: Final = 2048
MAX_DESCRIPTION_LENGTH: Final = 200
MAX_SENTENCE_LENGTH: Final = 300
MAX_ANSWER_BYTES: Final = 4 << 10  # of an answer that is kept
MAX_EVENT_TYPE_LENGTH: Final = 60
MAX_JOB_TYPE_LENGTH: Final = 50


def _names(max_length: int, help_text: str) -> Any:
    return ArrayField(models.CharField(max_length=max_length), default=list, blank=True, help_text=help_text)


class WebhookStatus(models.TextChoices):
    """Whether deliveries are sent to a webhook."""

    ACTIVE = "active"
    PAUSED = "paused"  # by a client, or after days of failure; deliveries become dead letters
    DISABLED = "disabled"  # the receiver answered 410; no deliveries are created
    DELETED = "deleted"  # by a client; the row remains until its deliveries are deleted by retention


class Webhook(ManagedRow):
    """An address of an organization to which events are sent.

    Attributes:
        event_types: The types of events that are sent; empty: all.
        job_types: The types of jobs whose events are sent; empty: all, and events without a job.
        status_reason: Why the webhook is paused or disabled, for people.
        sealed_secret: The key of signatures, sealed with the id of the webhook; null after the deletion.
        sealed_former_secret: The key before the last rotation. It signs, too, until `former_secret_until`.
        failing_since: The first failed try after the last successful one.
    """

    id = models.BigAutoField(primary_key=True)
    webhook_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_webhook_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="webhooks")
    url = models.CharField("URL", max_length=MAX_URL_LENGTH)
    description = models.CharField(max_length=MAX_DESCRIPTION_LENGTH, blank=True)
    event_types = _names(MAX_EVENT_TYPE_LENGTH, "Empty: all events.")
    job_types = _names(MAX_JOB_TYPE_LENGTH, "Empty: jobs of all types, and events without a job.")
    status = models.CharField(max_length=10, choices=WebhookStatus.choices, default=WebhookStatus.ACTIVE)
    status_reason = models.CharField(max_length=MAX_SENTENCE_LENGTH, blank=True)
    sealed_secret = models.BinaryField(editable=False, null=True)
    sealed_former_secret = models.BinaryField(editable=False, null=True)
    former_secret_until = models.DateTimeField(null=True)
    failing_since = models.DateTimeField(null=True)

    class Meta:
        db_table = "webhooks"

    def __str__(self) -> str:
        return f"{self.webhook_ulid} of {self.organization.slug}"

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"webhook:{self.webhook_ulid}"

    @property
    def sealing_context(self) -> str:
        """The place of the current secret, with which it is sealed."""
        return f"webhook/{self.webhook_ulid}/current"

    @property
    def former_sealing_context(self) -> str:
        """The place of the former secret."""
        return f"webhook/{self.webhook_ulid}/former"

    def wants(self, event_type: str, job_type: str) -> bool:
        """Return whether events of this type, of a job of this type or of none, are sent to the webhook."""
        if self.event_types and event_type not in self.event_types:
            return False
        return not self.job_types or job_type in self.job_types


class NotificationRule(ManagedRow):
    """A rule that turns events of an organization into notifications, which are sent to a webhook or by mail.

    Attributes:
        event_types: The types of events; never empty.
        job_types: The types of jobs; empty: all, and events without a job.
        projects: The slugs of projects; empty: all, and events without a job.
        failure_classes: Only failed jobs with such a failure; empty: all events.
        priority_from: The least priority of the job; None: any, and events without a job.
        gather_seconds: Events with the same key within this time become one notification. 0: each event is one.
    """

    id = models.BigAutoField(primary_key=True)
    rule_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_rule_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="notification_rules")
    name = models.CharField(max_length=100)
    is_enabled = models.BooleanField("enabled", default=True)
    event_types = _names(MAX_EVENT_TYPE_LENGTH, "At least one.")
    job_types = _names(MAX_JOB_TYPE_LENGTH, "Empty: jobs of all types, and events without a job.")
    projects = _names(63, "Slugs. Empty: all projects, and events without a job.")
    failure_classes = _names(20, "Empty: every event; otherwise only failures of these classes.")
    priority_from = models.IntegerField("priority from", null=True, blank=True, help_text="Empty: any priority.")
    webhook = models.ForeignKey(
        Webhook, on_delete=models.CASCADE, related_name="notification_rules", null=True, blank=True
    )
    recipients = ArrayField(models.EmailField(), default=list, blank=True, help_text="Addresses of mail.")
    gather_seconds = models.PositiveIntegerField("gather (seconds)", default=60)

    class Meta:
        db_table = "notification_rules"
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="one_notification_rule_per_name"),
            models.CheckConstraint(
                condition=Q(webhook__isnull=True, recipients__len__gt=0) | Q(webhook__isnull=False, recipients__len=0),
                name="a_rule_has_one_way",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.organization.slug})"

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"notification_rule:{self.rule_ulid}"


class GatheredNotification(models.Model):
    """Events of one rule with the same key that wait to be sent together.

    Attributes:
        key: The event type, job type and project.
        event_count: The number of events so far.
        last_event: The envelope of the newest event.
    """

    id = models.BigAutoField(primary_key=True)
    rule = models.ForeignKey(NotificationRule, on_delete=models.CASCADE, related_name="gathered", db_index=False)
    key = models.CharField(max_length=200)
    event_count = models.PositiveIntegerField(default=1)
    first_event_at = models.DateTimeField()
    last_event_at = models.DateTimeField()
    last_event = models.JSONField()
    due_at = models.DateTimeField()

    class Meta:
        db_table = "gathered_notifications"
        constraints = [models.UniqueConstraint(fields=["rule", "key"], name="one_gathered_notification_per_key")]
        # For `orchestrator.webhooks.notifications`: those that are due.
        indexes = [models.Index(fields=["due_at"], name="gathered_notifications_due")]

    def __str__(self) -> str:
        return f"{self.event_count} of {self.key}"


class DeliveryStatus(models.TextChoices):
    """The result of a delivery so far."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    DEAD = "dead"  # a dead letter: all tries have failed, or the webhook was not active


class Delivery(models.Model):
    """One message for one webhook, or one mail: its body, and when it is tried next.

    Attributes:
        webhook: The receiver; None for mail.
        recipients: The addresses of a mail; empty for a webhook.
        event_id: The id of the event in every try, the header `webhook-id`.
        round_tries: The tries since the delivery was created, or since it was requested again.
        tries: All tries.
        due_at: When it may be tried; null: it has ended.
        claimed_until: Until when a dispatcher sends it; afterwards any dispatcher may claim it.
        claim_count: Raised by each claim. A dispatcher that has lost its claim records nothing.
        last_error: Why the last try failed, as a sentence.
    """

    id = models.BigAutoField(primary_key=True)
    delivery_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_delivery_id, editable=False)
    org_slug = models.CharField("organization", max_length=63)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries", null=True, db_index=False)
    recipients = ArrayField(models.EmailField(), default=list)
    event_id = models.UUIDField()
    event_type = models.CharField(max_length=MAX_EVENT_TYPE_LENGTH)
    job_type = models.CharField(max_length=MAX_JOB_TYPE_LENGTH, blank=True)
    job_uuid = models.UUIDField(null=True)
    body = models.TextField()
    status = models.CharField(max_length=10, choices=DeliveryStatus.choices, default=DeliveryStatus.PENDING)
    round_tries = models.PositiveSmallIntegerField(default=0, db_default=0)
    tries = models.PositiveIntegerField(default=0, db_default=0)
    due_at = models.DateTimeField("due", null=True)
    claimed_until = models.DateTimeField(null=True)
    claim_count = models.BigIntegerField(default=0, db_default=0)
    last_error = models.CharField(max_length=MAX_SENTENCE_LENGTH, blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "deliveries"
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(fields=["webhook", "event_id"], name="one_delivery_per_event"),
            models.CheckConstraint(
                condition=Q(status="pending", due_at__isnull=False, finished_at__isnull=True)
                | (~Q(status="pending") & Q(due_at__isnull=True, finished_at__isnull=False)),
                name="due_while_pending",
            ),
            models.CheckConstraint(
                condition=Q(webhook__isnull=True, recipients__len__gt=0) | Q(webhook__isnull=False, recipients__len=0),
                name="a_delivery_has_one_way",
            ),
        ]
        indexes = [
            # For the claim: the due deliveries of each webhook, and of mail.
            models.Index(fields=["webhook", "due_at"], condition=Q(due_at__isnull=False), name="deliveries_due"),
            # For the claim: how many deliveries of a webhook are being sent.
            models.Index(fields=["webhook"], condition=Q(claimed_until__isnull=False), name="deliveries_being_sent"),
            # For the lists of the API.
            models.Index(fields=["webhook", "-id"], name="deliveries_of_webhook"),
            # For redelivery, and the number of dead letters in /metrics.
            models.Index(fields=["webhook", "id"], condition=Q(status="dead"), name="deliveries_dead"),
            # For retention, and for redelivery since a time.
            models.Index(fields=["created_at"], name="deliveries_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} {self.delivery_ulid}"


class DeliveryTry(models.Model):
    """One try of a delivery.

    Attributes:
        number: The number of the try within its delivery, from 1.
        duration_ms: Milliseconds until the end of the try.
        status_code: The HTTP status; null without an answer.
        answer: The first bytes of the answer's body, as text.
        sentence: What happened, for people.
    """

    id = models.BigAutoField(primary_key=True)
    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="all_tries", db_index=False)
    number = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    duration_ms = models.PositiveIntegerField("duration (ms)")
    status_code = models.PositiveSmallIntegerField(null=True)
    is_success = models.BooleanField()
    answer = models.TextField(blank=True)
    sentence = models.CharField(max_length=MAX_SENTENCE_LENGTH)

    class Meta:
        db_table = "delivery_tries"
        verbose_name_plural = "delivery tries"
        constraints = [models.UniqueConstraint(fields=["delivery", "number"], name="one_try_per_number")]
        # For retention.
        indexes = [models.Index(fields=["started_at"], name="delivery_tries_by_age")]

    def __str__(self) -> str:
        return self.sentence


class DispatchPosition(models.Model):
    """The position in the feed up to which events were turned into deliveries, in one row.

    Attributes:
        stamp: The stamp of the last event; see `orchestrator.events.pages.Place`.
        kind: The kind of the last event.
        event_id: The key of the last event.
        beat_at: When a dispatcher last read events. The dashboard reports that none is running.
    """

    id = models.SmallAutoField(primary_key=True)
    stamp = TransactionId()
    kind = models.SmallIntegerField(default=0)
    event_id = models.BigIntegerField(default=0)
    beat_at = models.DateTimeField()

    class Meta:
        db_table = "dispatch_position"

    def __str__(self) -> str:
        return f"{self.stamp}/{self.kind}/{self.event_id}"
