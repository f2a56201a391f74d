"""Labels, colours and advice for states, reasons, events and actors. Data, and a few functions that choose among it."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.admin.formatting import humanize
from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason
from orchestrator.selectors.pending_reasons.service import MAX_POSITION
from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES, CancelReason, FailureReason, JobState


@dataclass(frozen=True)
class ReasonLabel:
    """One sentence that says what happened, and one that says what to do."""

    summary: str
    advice: str


# --- failures and cancellations ---------------------------------------------------------------------------------------

FAILURES: dict[str, ReasonLabel] = {
    FailureReason.IMAGE_PULL_FAILED: ReasonLabel(
        "The worker could not pull the image.",
        "Check that the image still exists in the registry and fits the machine's architecture, then retry.",
    ),
    FailureReason.IMAGE_INVALID: ReasonLabel(
        "The image is invalid.",
        "The message says what the worker does not accept. Build the image again without it, and push it.",
    ),
    FailureReason.CHECKOUT_FAILED: ReasonLabel(
        "The checkout of the commit failed.",
        "Check that the commit exists and that the repository is readable without a login, then retry.",
    ),
    FailureReason.COMMAND_FAILED: ReasonLabel(
        "The command failed.", "Read the log. The worker and the platform are not the cause."
    ),
    FailureReason.COMMAND_NOT_FOUND: ReasonLabel(
        "The command was not found in the sandbox.",
        "Check the spelling of the command, and whether the worker's image contains the program.",
    ),
    FailureReason.SANDBOX_APPLY_FAILED: ReasonLabel(
        "The sandbox could not be set up. Nothing was executed.",
        "Read the worker's own log. Drain the worker if the failure repeats there, and retry the job elsewhere.",
    ),
    FailureReason.SANDBOX_UNAVAILABLE: ReasonLabel(
        "No worker could provide the minimum isolation of the job.",
        "Compare the minimum isolation of the pool with what its machines support, then retry.",
    ),
    FailureReason.TIMED_OUT: ReasonLabel(
        "The job exceeded its timeout.",
        "Submit the job with a longer timeout, up to the limit of the plan, if the command needs the time.",
    ),
    FailureReason.OUT_OF_MEMORY: ReasonLabel(
        "The job exceeded its memory limit.",
        "A retry fails in the same way unless the command needs less memory.",
    ),
    FailureReason.DISK_FULL: ReasonLabel(
        "The job exceeded its disk limit.", "A retry fails in the same way unless the command writes less."
    ),
    FailureReason.WORKER_DISK_FULL: ReasonLabel(
        "The worker's file system ran out of space, regardless of what the job used.",
        "Free space or inodes below the worker's work directory, or lower its capacity, then retry.",
    ),
    FailureReason.TOO_MANY_PROCESSES: ReasonLabel(
        "The job exceeded its process limit.",
        "Read the log before a retry: a fork loop is the usual cause.",
    ),
    FailureReason.TRACE_INCOMPLETE: ReasonLabel(
        "The trace is incomplete. The results are not reliable and were not uploaded.",
        "Retry the job. Drain the worker and check its tracer if the failure repeats there.",
    ),
    FailureReason.UPLOAD_FAILED: ReasonLabel(
        "The upload of the results failed.",
        "Check that the ingest service answers. Re-upload the results if they were kept, otherwise retry.",
    ),
    FailureReason.UPLOAD_REJECTED: ReasonLabel(
        "The ingest service rejected the results.",
        "The message gives the cause. A retry fails in the same way until the cause is fixed.",
    ),
    FailureReason.RESULT_MISSING: ReasonLabel(
        "The stored output of the job is missing.",
        "Check the storage of outputs. The output cannot be read again: submit the job again.",
    ),
    FailureReason.RESULT_UNREADABLE: ReasonLabel(
        "The output of the job could not be read.",
        "The message gives the cause. A retry fails in the same way until the output fits its adapter.",
    ),
    FailureReason.NEVER_ACKNOWLEDGED: ReasonLabel(
        "The job was leased several times, but no worker started it.",
        "Workers fail between claim and start: read their logs, then retry.",
    ),
    FailureReason.LEASE_EXPIRED: ReasonLabel(
        "The lease expired: the worker stopped sending heartbeats.",
        "Check that the worker is online. An automatic retry was queued if the retry policy had one left.",
    ),
    FailureReason.WORKER_LOST: ReasonLabel(
        "The lease was revoked.",
        "An operator revoked the lease or the worker. Retry the job when the cause is gone.",
    ),
    FailureReason.WORKER_SHUTDOWN: ReasonLabel(
        "The worker was shut down while the job ran.",
        "An automatic retry was queued if the retry policy had one left. Otherwise retry the job.",
    ),
    FailureReason.WORKER_ERROR: ReasonLabel(
        "The worker had an internal error.",
        "Read the worker's own log. Retry the job, and drain the worker if the failure repeats there.",
    ),
}

CANCELS: dict[str, str] = {
    CancelReason.REQUESTED: "requested by the client",
    CancelReason.BATCH_CANCELED: "the batch was canceled",
    CancelReason.SUPERSEDED: "superseded by a newer job",
    CancelReason.DEPENDENCY_FAILED: "a dependency failed",
    CancelReason.TIMEOUT: "queue timeout",
    CancelReason.OPERATOR: "requested by an operator",
    CancelReason.CONDITION_FALSE: "its condition is false",
    CancelReason.STOPPED_BY_WORKER: "stopped by the worker without a request",
}

# --- states -----------------------------------------------------------------------------------------------------------

STATE_HEADLINES: dict[str, str] = {
    JobState.BLOCKED: "Blocked by dependencies",
    JobState.QUEUED: "Queued",
    JobState.LEASED: "Leased, not started yet",
    JobState.STARTING: "Starting",
    JobState.CHECKING_OUT: "Checking out the commit",
    JobState.EXECUTING: "Executing the command",
    JobState.UPLOADING: "Uploading the results",
    JobState.LOST: "Lost, a late result still counts",
    JobState.PROCESSING: "Reading the result",
    JobState.SUCCEEDED: "Succeeded",
    JobState.FAILED: "Failed",
    JobState.CANCELED: "Canceled",
}

# Kinds of badge beside the states: a cancel that is requested, and a job whose command exited with an error. Such a job
# of type `runtime` has succeeded, because its results are uploaded; its badge must not be green.
CANCELING = "canceling"
COMMAND_ERROR = "command_error"

# Colours of badges, by the theme's names for them.
JOB_COLOURS: dict[str, str] = {
    JobState.BLOCKED: "info",
    JobState.QUEUED: "info",
    JobState.LEASED: "info",
    JobState.STARTING: "primary",
    JobState.CHECKING_OUT: "primary",
    JobState.EXECUTING: "primary",
    JobState.UPLOADING: "primary",
    JobState.LOST: "warning",
    JobState.PROCESSING: "primary",
    JobState.SUCCEEDED: "success",
    JobState.FAILED: "danger",
    JobState.CANCELED: "default",
    CANCELING: "warning",
    COMMAND_ERROR: "warning",
}


@dataclass(frozen=True)
class JobBadge:
    """The state of a job as a coloured label."""

    kind: str
    text: str

    @property
    def colour(self) -> str:
        return JOB_COLOURS[self.kind]


def job_badge(job: Job) -> JobBadge:
    """Return the badge of a job: a pending cancel, a nonzero exit code of its command, or its state."""
    if job.cancel_requested_at and job.state in LEASED_STATES:
        return JobBadge(CANCELING, "canceling")
    if job.state == JobState.SUCCEEDED and job.exit_code:
        return JobBadge(COMMAND_ERROR, f"succeeded · exit {job.exit_code}")
    return JobBadge(job.state, humanize(job.state))


# Counts of a job's results: singular and plural. The keys are those of `counts` in `run.v1`.
_COUNTS = {
    "processes": ("process", "processes"),
    "files": ("file", "files"),
    "files_accessed": ("file accessed", "files accessed"),
    "network_attempts": ("network attempt", "network attempts"),
    "suspicious": ("finding", "findings"),
    "suspicious_activity": ("finding", "findings"),
    "trace_lines": ("trace line", "trace lines"),
    "bad_lines": ("unparsed trace line", "unparsed trace lines"),
}


def count_label(name: str, count: object) -> str:
    """Return the noun for a count: `process` for 1, `processes` for others."""
    singular, plural = _COUNTS.get(name, (humanize(name), humanize(name)))
    return singular if count == 1 else plural


# --- reasons for waiting ----------------------------------------------------------------------------------------------

# Of a job that waits for something which does not change without an operator.
WAIT_COLOURS: dict[str, str] = {
    ReasonCode.NO_MATCHING_WORKER: "danger",
    ReasonCode.APPROVAL: "warning",
    ReasonCode.POOL_PAUSED: "warning",
    ReasonCode.BREAKER_OPEN: "warning",
}

WAIT_LABELS: dict[str, str] = {
    ReasonCode.APPROVAL: "Approval",
    ReasonCode.CONCURRENCY_GROUP: "Concurrency group",
    ReasonCode.DEPENDS_ON: "Dependencies",
    ReasonCode.POOL_PAUSED: "Paused",
    ReasonCode.BREAKER_OPEN: "Breaker open",
    ReasonCode.NO_MATCHING_WORKER: "No matching worker",
    ReasonCode.ORGANIZATION_LIMIT: "Concurrency limit",
    ReasonCode.SOURCE_ADDRESS_LIMIT: "Source IP limit",
    ReasonCode.RATE_LIMITED: "Rate limited",
    ReasonCode.ALL_WORKERS_BUSY: "Workers busy",
    ReasonCode.LATE_RESULT: "Late result",
}


def wait_label(reason: WaitReason) -> str:
    """Return the reason why a job waits as a list shows it."""
    return WAIT_LABELS.get(reason.code) or queue_label(reason.facts["position"])


def queue_label(position: int) -> str:
    """Format a position in the queue. Positions are counted up to MAX_POSITION, which means that or more."""
    return f"#{position:,}{'+' if position >= MAX_POSITION else ''} in queue"


# --- events and actors ------------------------------------------------------------------------------------------------

PROGRESS_EVENT = "job.progress"

# Each with a symbol of the theme's icon font. A progress event is shown as the state that it leads to.
EVENTS: dict[str, tuple[str, str]] = {
    "job.queued": ("Queued", "inbox"),
    "job.blocked": ("Blocked by dependencies", "lock_clock"),
    "job.unblocked": ("Unblocked: all dependencies succeeded", "lock_open"),
    "job.leased": ("Leased", "pan_tool"),
    "job.started": ("Started", "play_arrow"),
    PROGRESS_EVENT: ("Progressed", "arrow_forward"),
    "job.prioritized": ("Priority changed", "swap_vert"),
    "job.requeued": ("Requeued", "undo"),
    "job.lost": ("Lost: the lease ended without a result", "help"),
    "job.processing": ("Result received", "hourglass_top"),
    "job.cancel_requested": ("Cancel requested", "front_hand"),
    "job.canceled": ("Canceled", "block"),
    "job.completed": ("Completed", "check"),
    "job.failed": ("Failed", "priority_high"),
    "job.retried": ("Retried", "replay"),
    "job.replayed": ("Replay of another job", "fact_check"),
    "lease.expired": ("Lease expired", "timer_off"),
    "lease.revoked": ("Lease revoked", "remove_moderator"),
    "lease.released": ("Lease released, not executed", "keyboard_return"),
}

_SYSTEM_ACTORS = {"clock", "core"}  # the scheduler process, and rules of the server such as the retry policy


def actor_label(kind: str, name: str, worker_names: Mapping[str, str] | None = None) -> str:
    """Format an actor: `operator olga`, `worker build-01`, `System`.

    Args:
        kind: Kind of actor in an event: client, operator, worker, clock or core.
        name: Name of the actor; of a worker, its id.
        worker_names: Slugs of workers by id.
    """
    if kind in _SYSTEM_ACTORS:
        return "System"
    name = (worker_names or {}).get(name, name)
    return name if name in {kind, ""} else f"{kind} {name}"


def stored_actor_label(actor: str) -> str:
    """Format an actor that a row stores as `kind:name`."""
    kind, _, name = actor.partition(":")
    return actor_label(kind, name)
