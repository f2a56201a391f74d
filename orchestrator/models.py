"""Imports the models of the app `orchestrator`, each from the folder that it belongs to.

Django finds the models of an app by this module. Nothing else imports it.
"""

from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.core.metrics_models import Count, MetricsPosition
from orchestrator.evidence.chain_models import (
    Checkpoint,
    CheckpointJob,
    EvidenceChain,
    EvidencePosition,
    OperatorEventLink,
)
from orchestrator.evidence.models import AuditBundle, SigningKey
from orchestrator.evidence.replay_models import Replay, ReplayVerdict
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.images.models import (
    BlobUpload,
    ImageBlob,
    ImageManifest,
    ImageTag,
    ImageUsage,
    ManifestBlob,
    RepositoryBlob,
)
from orchestrator.incidents.models import Incident, IncidentKind, IncidentMode, IncidentStatus
from orchestrator.ingest.models import Run
from orchestrator.job_tokens.models import TokenChain, UsedToken
from orchestrator.limits.quota_overview import QuotaOverview
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.protocols.github.models import WebhookDelivery
from orchestrator.results.models import Benchmark, Branch, Measure, Metric, Report, ReportResult, Testbed
from orchestrator.schedules.models import Schedule, ScheduleTick
from orchestrator.webhooks.models import (
    Delivery,
    DeliveryTry,
    DispatchPosition,
    GatheredNotification,
    NotificationRule,
    Webhook,
)

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
    "HousekeepingTask",
    "ImageBlob",
    "ImageManifest",
    "ImageTag",
    "ImageUsage",
    "Incident",
    "IncidentKind",
    "IncidentMode",
    "IncidentStatus",
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
    "Run",
    "Schedule",
    "ScheduleTick",
    "SigningKey",
    "Testbed",
    "ThrottleWindow",
    "TokenChain",
    "UsedToken",
    "Webhook",
    "WebhookDelivery",
]
