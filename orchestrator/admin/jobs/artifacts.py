"""What a job left behind: where its artifacts lie, and the guess at why its command failed. All of it is hearsay."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from runtime_jobs.models import Artifact, FailureExplanation, Job

SHOWN = 100


@dataclass(frozen=True)
class ArtifactRow:
    """`link`: the address may be followed from a page. Most are those of object stores, and some of nothing good."""

    type: str
    uri: str
    link: bool


@dataclass(frozen=True)
class JobArtifacts:
    artifacts: list[ArtifactRow]
    guess: FailureExplanation | None


def left_behind(job: Job) -> JobArtifacts | None:
    """None where there is nothing to show."""
    rows = Artifact.objects.filter(job=job).order_by("pk")[:SHOWN]
    artifacts = [ArtifactRow(row.type, row.uri, may_be_followed(row.uri)) for row in rows]
    guess = FailureExplanation.objects.filter(job=job).first()
    return JobArtifacts(artifacts, guess) if artifacts or guess else None


def may_be_followed(uri: str) -> bool:
    """An ordinary address of the web: not `javascript:`, and none that a browser would fill in or log in with."""
    try:
        parts = urlsplit(uri)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
    except ValueError:
        return False
