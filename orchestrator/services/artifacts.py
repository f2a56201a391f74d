"""What comes with a job's end besides how it ended: where its artifacts lie, and a guess at why it failed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from orchestrator.services.unit_of_work.operation import current_unit_of_work
from runtime_jobs.failure_classifier import classify_failure
from runtime_jobs.models import Artifact, FailureExplanation, Job
from runtime_jobs.states import FailureReason, JobState


@dataclass(frozen=True)
class ArtifactRef:
    """An artifact: what it is, and where it lies. We never fetch it."""

    type: str
    uri: str


def save_artifacts(job: Job, artifacts: Sequence[ArtifactRef], *, at: datetime) -> None:
    """Keep the references, each address once. They are stored when the operation ends, as all that it decides."""
    rows = [Artifact(job=job, type=artifact.type, uri=artifact.uri, created_at=at) for artifact in artifacts]
    current_unit_of_work().artifacts.extend(rows)


def save_diagnosis(job: Job, artifacts: Sequence[ArtifactRef], *, at: datetime) -> None:
    """Guess why a command failed. Other reasons speak for themselves."""
    if job.state != JobState.FAILED or job.failure_reason != FailureReason.COMMAND_FAILED:
        return
    guess = classify_failure(
        name=str(job.spec.get("name", "")),
        exit_code=job.exit_code,
        said=job.failure_message or "",
        logs=[artifact.uri for artifact in artifacts if artifact.type == "log"],
    )
    current_unit_of_work().guesses.append(FailureExplanation(job=job, created_at=at, **asdict(guess)))
