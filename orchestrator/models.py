"""The models of the app `orchestrator`: the scheduler's beat and incidents here, the others in the packages they serve.

Django imports the models of an app from this module.
"""

from django.db import models

from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.evidence.chain_models import (
    Checkpoint,
    CheckpointJob,
    EvidenceChain,
    EvidencePosition,
    OperatorEventLink,
)
from orchestrator.evidence.models import AuditBundle, SigningKey
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.http.auth.login_throttle import LoginAttempts
from orchestrator.http.request_limits import RequestWindow
from orchestrator.images.models import (
    BlobUpload,
    ImageBlob,
    ImageManifest,
    ImageTag,
    ImageUsage,
    ManifestBlob,
    RepositoryBlob,
)
from orchestrator.ingest.models import Run
from orchestrator.job_tokens.models import TokenChain, UsedToken
from orchestrator.maintenance.metrics_models import Count, MetricsPosition
from orchestrator.protocols.github.models import WebhookDelivery
from orchestrator.protocols.shithub.models import HeartbeatWindow
from orchestrator.recurring.models import Schedule, ScheduleTick
from orchestrator.replays.models import Replay, ReplayVerdict
from orchestrator.results.models import Benchmark, Branch, Measure, Metric, Report, ReportResult, Testbed
from orchestrator.webhooks.models import (
    Delivery,
    DeliveryTry,
    DispatchPosition,
    GatheredNotification,
    NotificationRule,
    Webhook,
)
from runtime_jobs.identifiers import ID_LENGTH, new_incident_id
from runtime_jobs.models import Organization

__all__ = [
    "AuditBundle",
    "Benchmark",
    "BlobUpload",
    "Branch",
    "BulkAction",
    "BulkTarget",
    "Checkpoint",
    "CheckpointJob",
    "ClockBeat",
    "Count",
    "Delivery",
    "DeliveryTry",
    "DispatchPosition",
    "EvidenceChain",
    "EvidencePosition",
    "GatheredNotification",
    "HeartbeatWindow",
    "HousekeepingTask",
    "ImageBlob",
    "ImageManifest",
    "ImageTag",
    "ImageUsage",
    "Incident",
    "IncidentKind",
    "IncidentMode",
    "IncidentStatus",
    "LoginAttempts",
    "ManifestBlob",
    "Measure",
    "Metric",
    "MetricsPosition",
    "NotificationRule",
    "OperatorEventLink",
    "QuotaOverview",
    "Replay",
    "ReplayVerdict",
    "Report",
    "ReportResult",
    "RepositoryBlob",
    "RequestWindow",
    "Run",
    "Schedule",
    "ScheduleTick",
    "SigningKey",
    "Testbed",
    "TokenChain",
    "UsedToken",
    "Webhook",
    "WebhookDelivery",
]


class ClockBeat(models.Model):
    """The scheduler process that leads, and its last beat, in one row: see `maintenance.leadership`.

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


class IncidentKind(models.TextChoices):
    """The cause of an incident."""

    BREAKER = "breaker"  # a circuit breaker opened
    JOB = "job"  # a job failed through no fault of its own, and is not retried
    REPLAY = "replay"  # a replay of a job had another result
    WEBHOOK = "webhook"  # the receiver of a webhook has failed for days
    WORKER = "worker"  # a worker pauses, because its jobs fail for reasons of its own


class IncidentStatus(models.TextChoices):
    """The status of an incident."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class IncidentQuerySet(models.QuerySet["Incident"]):
    """Filters of incidents."""

    def unresolved(self) -> "IncidentQuerySet":
        return self.filter(resolved_at=None)

    def with_status(self, status: str) -> "IncidentQuerySet":
        if status == IncidentStatus.RESOLVED:
            return self.exclude(resolved_at=None)
        return self.unresolved().filter(acknowledged_at__isnull=status == IncidentStatus.OPEN)


class Incident(models.Model):
    """An event for operators until it is resolved (document 004).

    Unresolved incidents of jobs are the list of dead letters: jobs that failed, and that nothing retries.

    Attributes:
        job_ulid: The job, an attempt, if the incident concerns one.
        org_slug: The organization, or empty for an incident of a worker.
        webhook_ulid: The webhook, if the incident concerns one. Retention may have deleted it.
        worker_ulid: The worker, if the incident concerns one.
        reason: The reason of the failure, from the list of failure reasons.
        resolution: How it was resolved.
    """

    incident_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_incident_id, editable=False)
    kind = models.CharField(max_length=20, choices=IncidentKind.choices)
    org_slug = models.CharField(max_length=63, blank=True)
    job_type = models.CharField(max_length=50)
    job_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    webhook_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    worker_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    reason = models.CharField(max_length=40, blank=True, default="", db_default="")
    summary = models.CharField(max_length=500)
    opened_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.CharField(max_length=200, blank=True)
    resolution = models.CharField(max_length=500, blank=True, default="", db_default="")

    objects = IncidentQuerySet.as_manager()

    class Meta:
        db_table = "incidents"
        constraints = [
            models.UniqueConstraint(
                fields=["job_ulid", "kind"],
                condition=models.Q(resolved_at=None, job_ulid__isnull=False),
                name="one_unresolved_incident_per_job",
            ),
            models.UniqueConstraint(
                fields=["webhook_ulid"],
                condition=models.Q(resolved_at=None, webhook_ulid__isnull=False),
                name="one_unresolved_incident_per_webhook",
            ),
            models.UniqueConstraint(
                fields=["worker_ulid"],
                condition=models.Q(resolved_at=None, worker_ulid__isnull=False),
                name="one_unresolved_incident_per_worker",
            ),
        ]
        indexes = [
            models.Index(fields=["org_slug", "job_type"], name="incidents_open", condition=models.Q(resolved_at=None)),
            models.Index(fields=["job_ulid"], name="incidents_of_jobs", condition=models.Q(job_ulid__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.summary

    @property
    def status(self) -> IncidentStatus:
        """The status, by the newest of its times."""
        if self.resolved_at is not None:
            return IncidentStatus.RESOLVED
        return IncidentStatus.OPEN if self.acknowledged_at is None else IncidentStatus.ACKNOWLEDGED


class QuotaOverview(Organization):
    """The same rows as organizations, for the page of quotas in the admin."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = "quota"


class IncidentMode(models.Model):
    """The time in which an organization is in incident mode: its records are kept, and notifications are sent at once.

    A row whose `until` has passed has no effect. The scheduler process removes it.
    """

    org_slug = models.CharField(max_length=63, unique=True)
    reason = models.CharField(max_length=500)
    begun_at = models.DateTimeField()
    begun_by = models.CharField(max_length=200)
    until = models.DateTimeField()

    class Meta:
        db_table = "incident_modes"

    def __str__(self) -> str:
        return f"{self.org_slug} until {self.until}"
