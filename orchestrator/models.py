"""The models of the app `orchestrator`: the scheduler's beat and incidents here, the others in the packages they serve.

Django imports the models of an app from this module.
"""

from django.db import models

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
from orchestrator.results.models import Benchmark, Branch, Measure, Metric, Report, ReportResult, Testbed
from runtime_jobs.identifiers import ID_LENGTH, new_incident_id

__all__ = [
    "Benchmark",
    "BlobUpload",
    "Branch",
    "ClockBeat",
    "Count",
    "HeartbeatWindow",
    "HousekeepingTask",
    "ImageBlob",
    "ImageManifest",
    "ImageTag",
    "ImageUsage",
    "Incident",
    "LoginAttempts",
    "ManifestBlob",
    "Measure",
    "Metric",
    "MetricsPosition",
    "Report",
    "ReportResult",
    "RepositoryBlob",
    "RequestWindow",
    "Run",
    "Testbed",
    "TokenChain",
    "UsedToken",
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


class Incident(models.Model):
    """An event for operators until it is resolved: a breaker that opened (document 004)."""

    incident_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_incident_id, editable=False)
    kind = models.CharField(max_length=20, choices=[("breaker", "breaker")])
    org_slug = models.CharField(max_length=63)
    job_type = models.CharField(max_length=50)
    summary = models.CharField(max_length=500)
    opened_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.CharField(max_length=200, blank=True)

    class Meta:
        db_table = "incidents"
        indexes = [
            models.Index(fields=["org_slug", "job_type"], name="incidents_open", condition=models.Q(resolved_at=None)),
        ]

    def __str__(self) -> str:
        return self.summary
