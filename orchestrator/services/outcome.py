"""What a verb of a client has come to."""

from dataclasses import dataclass

from runtime_jobs.models import Job


@dataclass(frozen=True)
class OperationResult:
    """A job after a verb. `replayed`: an earlier request with the same key made it. `accepted`: asked for, not done."""

    job: Job
    replayed: bool = False
    accepted: bool = False
