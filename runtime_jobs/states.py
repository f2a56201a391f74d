"""The states of a job, the transitions between them, and the sets that constraints and queries use. Data only."""

from django.db.models import TextChoices


class JobState(TextChoices):
    """The state of a job."""

    BLOCKED = "blocked"  # waits for jobs that it depends on
    QUEUED = "queued"  # may be claimed
    LEASED = "leased"  # holds a granted lease that its worker has not acknowledged yet
    STARTING = "starting"  # active lease, preparing
    CHECKING_OUT = "checking_out"
    EXECUTING = "executing"
    UPLOADING = "uploading"  # the result is on its way to ingest
    LOST = "lost"  # its lease ended without a result; a late result still counts
    PROCESSING = "processing"  # the result has arrived and is being read
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


WAITING_STATES = (JobState.BLOCKED, JobState.QUEUED)
RUNNING_STATES = (JobState.STARTING, JobState.CHECKING_OUT, JobState.EXECUTING, JobState.UPLOADING)
LEASED_STATES = (JobState.LEASED, *RUNNING_STATES)  # states in which exactly one lease is open
SETTLING_STATES = (JobState.LOST, JobState.PROCESSING)  # no lease, no slot of a limit, and not final
FINAL_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED)

# A worker may skip phases, but not return to an earlier one. A job may become `lost` or `processing` only if its policy
# permits that: `late_result_seconds` and `needs_processing` of `JobPolicy`.
_AHEAD = {state: frozenset(RUNNING_STATES[place + 1 :]) for place, state in enumerate(RUNNING_STATES)}
_ENDS = frozenset(FINAL_STATES)
_QUEUED = frozenset({JobState.QUEUED})
_LOST = frozenset({JobState.LOST})
_SETTLING = frozenset(SETTLING_STATES)

TRANSITIONS: dict[str, frozenset[str]] = {
    JobState.BLOCKED: frozenset({JobState.CANCELED}) | _QUEUED,
    JobState.QUEUED: frozenset({JobState.LEASED, JobState.CANCELED}),
    JobState.LEASED: frozenset({JobState.STARTING, JobState.FAILED, JobState.CANCELED}) | _QUEUED | _LOST,
    JobState.STARTING: _AHEAD[JobState.STARTING] | _ENDS | _QUEUED | _LOST,  # back to the queue: released unexecuted
    JobState.CHECKING_OUT: _AHEAD[JobState.CHECKING_OUT] | _ENDS | _QUEUED | _LOST,
    JobState.EXECUTING: _AHEAD[JobState.EXECUTING] | _ENDS | _SETTLING,
    JobState.UPLOADING: _ENDS | _SETTLING,
    JobState.LOST: frozenset({JobState.PROCESSING, JobState.FAILED, JobState.CANCELED}),
    JobState.PROCESSING: frozenset({JobState.SUCCEEDED, JobState.FAILED}),  # a result that has arrived is not canceled
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELED: frozenset(),
}

# The public status of each state (document 000).
STATUS: dict[str, str] = {
    JobState.BLOCKED: "queued",
    JobState.QUEUED: "queued",
    JobState.LEASED: "queued",
    JobState.STARTING: "running",
    JobState.CHECKING_OUT: "running",
    JobState.EXECUTING: "running",
    JobState.UPLOADING: "running",
    JobState.LOST: "running",
    JobState.PROCESSING: "running",
    JobState.SUCCEEDED: "uploaded",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
}

# The public status of a job of a type without ingest, where it differs.
STATUS_WITHOUT_INGEST: dict[str, str] = {JobState.SUCCEEDED: "succeeded"}

# The causes of a job. Clients may name the first two. Pushes arrive by a webhook only. The last two start workflow
# runs.
MANUAL, PULL_REQUEST = CLIENT_TRIGGERS = ("manual", "pull_request")
TRIGGER_KINDS = (*CLIENT_TRIGGERS, "push", "schedule", "workflow_dispatch")


def trigger_of_rerun(kind: str) -> str:
    """Return the cause of a rerun. The code of a pull request stays that of a stranger, whoever runs it again."""
    return PULL_REQUEST if kind == PULL_REQUEST else MANUAL


def can_transition(source: str | None, target: str) -> bool:
    """Return whether a job may go from one state to another; `source` is None for a new job."""
    if source is None:
        return target in WAITING_STATES
    return target in TRANSITIONS[source]


class FailureClass(TextChoices):
    """The party that a failure is attributed to."""

    JOB = "job"
    WORKER = "worker"
    INFRASTRUCTURE = "infrastructure"
    POLICY = "policy"


class FailureReason(TextChoices):
    """The reason why a job failed."""

    IMAGE_PULL_FAILED = "image_pull_failed"
    IMAGE_INVALID = "image_invalid"
    CHECKOUT_FAILED = "checkout_failed"
    COMMAND_FAILED = "command_failed"
    COMMAND_NOT_FOUND = "command_not_found"
    SANDBOX_APPLY_FAILED = "sandbox_apply_failed"
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    WORKER_DISK_FULL = "worker_disk_full"
    TOO_MANY_PROCESSES = "too_many_processes"
    TRACE_INCOMPLETE = "trace_incomplete"
    UPLOAD_FAILED = "upload_failed"
    UPLOAD_REJECTED = "upload_rejected"
    RESULT_MISSING = "result_missing"
    RESULT_UNREADABLE = "result_unreadable"
    NEVER_ACKNOWLEDGED = "never_acknowledged"
    LEASE_EXPIRED = "lease_expired"
    WORKER_LOST = "worker_lost"
    WORKER_SHUTDOWN = "worker_shutdown"
    WORKER_ERROR = "worker_error"


FAILURE_CLASSES: dict[str, FailureClass] = {
    FailureReason.IMAGE_PULL_FAILED: FailureClass.JOB,
    FailureReason.IMAGE_INVALID: FailureClass.JOB,
    FailureReason.CHECKOUT_FAILED: FailureClass.JOB,
    FailureReason.COMMAND_FAILED: FailureClass.JOB,
    FailureReason.COMMAND_NOT_FOUND: FailureClass.JOB,
    FailureReason.SANDBOX_APPLY_FAILED: FailureClass.WORKER,
    FailureReason.SANDBOX_UNAVAILABLE: FailureClass.WORKER,
    FailureReason.TIMED_OUT: FailureClass.POLICY,
    FailureReason.OUT_OF_MEMORY: FailureClass.POLICY,
    FailureReason.DISK_FULL: FailureClass.POLICY,
    FailureReason.WORKER_DISK_FULL: FailureClass.INFRASTRUCTURE,
    FailureReason.TOO_MANY_PROCESSES: FailureClass.POLICY,
    FailureReason.TRACE_INCOMPLETE: FailureClass.WORKER,
    FailureReason.UPLOAD_FAILED: FailureClass.INFRASTRUCTURE,
    FailureReason.UPLOAD_REJECTED: FailureClass.INFRASTRUCTURE,
    FailureReason.RESULT_MISSING: FailureClass.INFRASTRUCTURE,  # the store has lost the output
    FailureReason.RESULT_UNREADABLE: FailureClass.JOB,
    FailureReason.NEVER_ACKNOWLEDGED: FailureClass.WORKER,
    FailureReason.LEASE_EXPIRED: FailureClass.WORKER,
    FailureReason.WORKER_LOST: FailureClass.WORKER,
    FailureReason.WORKER_SHUTDOWN: FailureClass.WORKER,
    FailureReason.WORKER_ERROR: FailureClass.WORKER,
}

# Reasons why a job fails whose result has arrived.
RESULT_FAILURES = (FailureReason.RESULT_MISSING, FailureReason.RESULT_UNREADABLE)
# Reasons that a worker may report. The server itself detects the others.
REPORTABLE_FAILURES = frozenset(FailureReason) - {
    FailureReason.NEVER_ACKNOWLEDGED,
    FailureReason.LEASE_EXPIRED,
    FailureReason.WORKER_LOST,
    *RESULT_FAILURES,
}
# Failures of a worker's machine. The retry is left to other workers.
RETRIED_ELSEWHERE = frozenset({FailureReason.WORKER_DISK_FULL})
# Only crashes of a worker are retried automatically (document 000, Retry policy).
RETRIED_AUTOMATICALLY = (
    frozenset({FailureReason.LEASE_EXPIRED, FailureReason.WORKER_LOST, FailureReason.WORKER_SHUTDOWN})
    | RETRIED_ELSEWHERE
)


# A job that failed for one of these, and is not retried, opens an incident.
ESCALATED_FAILURES = frozenset(
    FailureReason(reason)
    for reason, failure_class in FAILURE_CLASSES.items()
    if failure_class in {FailureClass.WORKER, FailureClass.INFRASTRUCTURE}
)


class CancelReason(TextChoices):
    """The reason why a job was canceled."""

    REQUESTED = "requested"
    BATCH_CANCELED = "batch_canceled"
    SUPERSEDED = "superseded"
    DEPENDENCY_FAILED = "dependency_failed"
    TIMEOUT = "timeout"
    OPERATOR = "operator"
    CONDITION_FALSE = "condition_false"  # the `if` of a workflow job
    STOPPED_BY_WORKER = "stopped_by_worker"  # without a request


class StepStatus(TextChoices):
    """The status of a step, in the words of workflow protocols."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Conclusion(TextChoices):
    """The conclusion of an ended step or workflow job, in the words of workflow protocols."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    TIMED_OUT = "timed_out"
    ACTION_REQUIRED = "action_required"


OPEN_STEP_STATUSES = (StepStatus.QUEUED, StepStatus.RUNNING)
ENDED_STEP_STATUSES = (StepStatus.COMPLETED, StepStatus.CANCELLED, StepStatus.SKIPPED)

# A repetition of the end is answered with what is stored (`orchestrator.step_logs.steps`) and is no transition.
STEP_TRANSITIONS: dict[str, frozenset[str]] = {
    StepStatus.QUEUED: frozenset({StepStatus.RUNNING, *ENDED_STEP_STATUSES}),
    StepStatus.RUNNING: frozenset(ENDED_STEP_STATUSES),
    StepStatus.COMPLETED: frozenset(),
    StepStatus.CANCELLED: frozenset(),
    StepStatus.SKIPPED: frozenset(),
}

# Conclusions with which a workflow job has failed.
FAILED_CONCLUSIONS = (Conclusion.FAILURE, Conclusion.TIMED_OUT, Conclusion.ACTION_REQUIRED)


def can_step_transition(source: str, target: str) -> bool:
    """Return whether a step may go from one status to another."""
    return target in STEP_TRANSITIONS[source]
