"""The statuses of document 004, and the status of each state. Data and pure functions."""

from django.db.models import TextChoices

from runtime_jobs.states import JobState


class OrchestrationStatus(TextChoices):
    """The status of a job in the words of document 004."""

    CREATED = "created"
    QUEUED = "queued"
    THROTTLED = "throttled"
    LEASED = "leased"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    INCIDENT = "incident"


# A queued job that a limit blocks is throttled, and a failed job with an open incident is an incident. Both depend on
# other rows than the job's.
STATUS_OF_STATE: dict[str, OrchestrationStatus] = {
    JobState.BLOCKED: OrchestrationStatus.CREATED,
    JobState.QUEUED: OrchestrationStatus.QUEUED,
    JobState.LEASED: OrchestrationStatus.LEASED,
    JobState.STARTING: OrchestrationStatus.RUNNING,
    JobState.CHECKING_OUT: OrchestrationStatus.RUNNING,
    JobState.EXECUTING: OrchestrationStatus.RUNNING,
    JobState.UPLOADING: OrchestrationStatus.RUNNING,
    JobState.LOST: OrchestrationStatus.RUNNING,
    JobState.PROCESSING: OrchestrationStatus.RUNNING,
    JobState.SUCCEEDED: OrchestrationStatus.COMPLETED,
    JobState.FAILED: OrchestrationStatus.FAILED,
    JobState.CANCELED: OrchestrationStatus.CANCELED,
}


def orchestration_status(state: str, *, is_throttled: bool = False, has_incident: bool = False) -> OrchestrationStatus:
    """Return the status of a job.

    Args:
        state: The state of the job.
        is_throttled: Whether a limit blocks the job, which counts while it is queued.
        has_incident: Whether an incident of the job is open, which counts if it has failed.
    """
    if state == JobState.QUEUED and is_throttled:
        return OrchestrationStatus.THROTTLED
    if state == JobState.FAILED and has_incident:
        return OrchestrationStatus.INCIDENT
    return STATUS_OF_STATE[state]


def states_of(status: str) -> tuple[str, ...]:
    """Return the states of which jobs with this status are."""
    if status == OrchestrationStatus.THROTTLED:
        return (JobState.QUEUED,)
    if status == OrchestrationStatus.INCIDENT:
        return (JobState.FAILED,)
    return tuple(state for state, word in STATUS_OF_STATE.items() if word == status)
