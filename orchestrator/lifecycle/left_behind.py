"""What comes with a job's end besides how it ended: where its artifacts lie, and a guess at why it failed."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from django.db import DatabaseError, transaction

from runtime_jobs.explaining import explanation_of
from runtime_jobs.models import Artifact, FailureExplanation, Job
from runtime_jobs.states import FailureReason, JobState

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reference:
    """An artifact: what it is, and where it lies. We never fetch it."""

    type: str
    uri: str


def keep(job: Job, artifacts: Sequence[Reference], *, at: datetime) -> None:
    """Keep the references, each address once."""
    rows = [Artifact(job=job, type=artifact.type, uri=artifact.uri, created_at=at) for artifact in artifacts]
    Artifact.objects.bulk_create(rows, ignore_conflicts=True)


def explain(job: Job, artifacts: Sequence[Reference], *, at: datetime) -> None:
    """Guess why a command failed. Other reasons speak for themselves. A guess that cannot be stored is no reason to
    lose the result: it is logged, and left out."""
    if job.state != JobState.FAILED or job.failure_reason != FailureReason.COMMAND_FAILED:
        return
    guess = explanation_of(
        name=str(job.spec.get("name", "")),
        exit_code=job.exit_code,
        said=job.failure_message or "",
        logs=[artifact.uri for artifact in artifacts if artifact.type == "log"],
    )
    try:
        with transaction.atomic():
            FailureExplanation.objects.update_or_create(job=job, defaults=asdict(guess) | {"created_at": at})
    except DatabaseError:
        log.exception("no explanation of %s", job.job_ulid)
