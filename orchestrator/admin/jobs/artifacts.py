"""The artifacts of a job: stored files, addresses that its worker reported, and its guess at the cause of a failure."""

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from django.db.models import Q, QuerySet
from django.utils import timezone

from runtime_jobs.models import Artifact, FailureExplanation, Job, StoredArtifact

MAX_ARTIFACTS = 100


@dataclass(frozen=True)
class ArtifactRow:
    """An artifact. `is_link`: the page may link to the address."""

    type: str
    uri: str
    is_link: bool


@dataclass(frozen=True)
class JobArtifacts:
    """Artifacts and the worker's explanation of a failure.

    Attributes:
        stored: Complete files in the storage of the installation.
        rows: Addresses that the worker reported, unverified.
        explanation: The worker's guess, unverified.
    """

    stored: list[StoredArtifact]
    rows: list[ArtifactRow]
    explanation: FailureExplanation | None


def artifacts_of(job: Job) -> JobArtifacts | None:
    """Read the artifacts of a job. None if it has neither artifacts nor an explanation."""
    artifacts = Artifact.objects.filter(job=job).order_by("pk")[:MAX_ARTIFACTS]
    rows = [ArtifactRow(artifact.type, artifact.uri, is_safe_link(artifact.uri)) for artifact in artifacts]
    explanation = FailureExplanation.objects.filter(job=job).first()
    stored = list(visible_artifacts(timezone.now()).filter(job=job).order_by("pk")[:MAX_ARTIFACTS])
    return JobArtifacts(stored, rows, explanation) if stored or rows or explanation else None


def visible_artifacts(now: datetime) -> QuerySet[StoredArtifact]:
    """Return the artifacts that can be downloaded: complete, not deleted and not expired."""
    unexpired = Q(expires_at=None) | Q(expires_at__gt=now)
    return StoredArtifact.objects.filter(unexpired, is_abandoned=False, completed_at__isnull=False)


def is_safe_link(uri: str) -> bool:
    """Report whether a page may link to the address: http or https with a host, and without credentials.

    Excludes `javascript:` addresses and those that a browser would complete or log in with.
    """
    try:
        parts = urlsplit(uri)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
    except ValueError:
        return False
