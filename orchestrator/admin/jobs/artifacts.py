"""The artifacts that a worker reported for a job, and its guess at the cause of a failure. Both are unverified."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from runtime_jobs.models import Artifact, FailureExplanation, Job

MAX_ARTIFACTS = 100


@dataclass(frozen=True)
class ArtifactRow:
    """An artifact. `is_link`: the page may link to the address."""

    type: str
    uri: str
    is_link: bool


@dataclass(frozen=True)
class JobArtifacts:
    """Artifacts and the worker's explanation of a failure."""

    rows: list[ArtifactRow]
    explanation: FailureExplanation | None


def artifacts_of(job: Job) -> JobArtifacts | None:
    """Read the artifacts of a job. None if it has neither artifacts nor an explanation."""
    artifacts = Artifact.objects.filter(job=job).order_by("pk")[:MAX_ARTIFACTS]
    rows = [ArtifactRow(artifact.type, artifact.uri, is_safe_link(artifact.uri)) for artifact in artifacts]
    explanation = FailureExplanation.objects.filter(job=job).first()
    return JobArtifacts(rows, explanation) if rows or explanation else None


def is_safe_link(uri: str) -> bool:
    """Report whether a page may link to the address: http or https with a host, and without credentials.

    Excludes `javascript:` addresses and those that a browser would complete or log in with.
    """
    try:
        parts = urlsplit(uri)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
    except ValueError:
        return False
