"""What codes mean, for people: why a job failed and what to do about it, what an event says. Data only."""

from dataclasses import dataclass

from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason
from runtime_jobs.states import CancelReason, FailureReason, JobState


@dataclass(frozen=True)
class ReasonLabel:
    """One sentence that says what happened, one that says what to do."""

    happened: str
    advice: str


FAILURES: dict[str, ReasonLabel] = {
    FailureReason.CHECKOUT_FAILED: ReasonLabel(
        "The commit could not be checked out.",
        "See whether the commit still exists and the repository may be read without a login; then retry.",
    ),
    FailureReason.COMMAND_FAILED: ReasonLabel(
        "The command ended with an error.", "The log says why. Nothing is wrong with the worker."
    ),
    FailureReason.COMMAND_NOT_FOUND: ReasonLabel(
        "There is no such program in the sandbox.",
        "Look for a typing error in the command, or for a tool that the worker's image lacks.",
    ),
    FailureReason.SANDBOX_APPLY_FAILED: ReasonLabel(
        "The sandbox could not be set up, so nothing was executed.",
        "Look at the worker's own log; drain it if this repeats there, and retry the job elsewhere.",
    ),
    FailureReason.SANDBOX_UNAVAILABLE: ReasonLabel(
        "No worker that tried could offer the isolation that the job asks for.",
        "Compare what the pool asks for with what its machines can do, then retry.",
    ),
    FailureReason.TIMED_OUT: ReasonLabel(
        "It ran longer than it may.",
        "If the command is meant to take that long, submit it with a longer timeout, within the plan's limit.",
    ),
    FailureReason.OUT_OF_MEMORY: ReasonLabel(
        "It needed more memory than the sandbox gives.",
        "A retry will end the same way unless the command needs less.",
    ),
    FailureReason.DISK_FULL: ReasonLabel(
        "It wrote more than the workspace holds.", "A retry will end the same way unless the command writes less."
    ),
    FailureReason.WORKER_DISK_FULL: ReasonLabel(
        "The worker's file system ran low, whatever the job itself used.",
        "Free space or inodes below the worker's work directory, or lower its capacity, then retry.",
    ),
    FailureReason.TOO_MANY_PROCESSES: ReasonLabel(
        "It started more processes than the sandbox allows.",
        "Often a fork loop; look at the log before a retry.",
    ),
    FailureReason.TRACE_INCOMPLETE: ReasonLabel(
        "It ran, but its trace has holes, so its run cannot be trusted and was not uploaded.",
        "Retry; if it repeats on this worker, drain it and look at its tracer.",
    ),
    FailureReason.UPLOAD_FAILED: ReasonLabel(
        "It ran well, but its run could not be handed to ingest.",
        "See whether ingest answers. If the run was kept, resend it; else retry.",
    ),
    FailureReason.UPLOAD_REJECTED: ReasonLabel(
        "It ran well, but ingest refused its run.",
        "The message says why; a retry ends the same way until that is mended.",
    ),
    FailureReason.NEVER_ACKNOWLEDGED: ReasonLabel(
        "It was handed out again and again, and no worker took it up.",
        "Workers die between claim and start: look at their logs, then retry.",
    ),
    FailureReason.LEASE_EXPIRED: ReasonLabel(
        "Its worker fell silent while it ran.",
        "See whether the worker is alive. The job was retried by itself if its policy had a retry left.",
    ),
    FailureReason.WORKER_LOST: ReasonLabel(
        "It was taken away from its worker.",
        "An operator did that, or the worker was revoked. Retry it when the reason is gone.",
    ),
    FailureReason.WORKER_SHUTDOWN: ReasonLabel(
        "Its worker was shut down before it had ended.",
        "It was retried by itself if its policy had a retry left; else retry it.",
    ),
    FailureReason.WORKER_ERROR: ReasonLabel(
        "The worker itself went wrong.",
        "Look at the worker's own log; retry the job, and drain the worker if it repeats.",
    ),
}

CANCELS: dict[str, str] = {
    CancelReason.REQUESTED: "its client asked for it",
    CancelReason.BATCH_CANCELED: "its batch was canceled",
    CancelReason.SUPERSEDED: "a newer job took its place",
    CancelReason.DEPENDENCY_FAILED: "a job that it depends on failed",
    CancelReason.TIMEOUT: "it waited for too long",
    CancelReason.OPERATOR: "an operator asked for it",
}

PHASES: dict[str, str] = {
    JobState.BLOCKED: "Waits for other jobs",
    JobState.QUEUED: "Waits in the queue",
    JobState.LEASED: "Handed to a worker, not taken up yet",
    JobState.STARTING: "Prepares",
    JobState.CHECKING_OUT: "Checks out the commit",
    JobState.EXECUTING: "Executes the command",
    JobState.UPLOADING: "Uploads its run",
    JobState.SUCCEEDED: "Uploaded",
    JobState.FAILED: "Failed",
    JobState.CANCELED: "Canceled",
}

# Each with a symbol of the theme's icon font.
EVENTS: dict[str, tuple[str, str]] = {
    "job.queued": ("Queued", "inbox"),
    "job.blocked": ("Waits for other jobs", "lock_clock"),
    "job.unblocked": ("Queued: what it depends on has succeeded", "lock_open"),
    "job.leased": ("Handed to a worker", "pan_tool"),
    "job.started": ("Taken up", "play_arrow"),
    "job.progress": ("Went on", "arrow_forward"),
    "job.prioritized": ("Waits with another priority", "swap_vert"),
    "job.requeued": ("Back in the queue", "undo"),
    "job.cancel_requested": ("Cancel asked for", "front_hand"),
    "job.canceled": ("Canceled", "block"),
    "job.completed": ("Completed", "check"),
    "job.failed": ("Failed", "priority_high"),
    "job.retried": ("A new attempt", "replay"),
    "lease.expired": ("Lease expired", "timer_off"),
    "lease.revoked": ("Lease taken away", "remove_moderator"),
    "lease.released": ("Given back unexecuted", "keyboard_return"),
}

# Colours of badges, by the theme's names for them.
JOB_COLOURS: dict[str, str] = {
    JobState.BLOCKED: "info",
    JobState.QUEUED: "info",
    JobState.LEASED: "info",
    JobState.STARTING: "primary",
    JobState.CHECKING_OUT: "primary",
    JobState.EXECUTING: "primary",
    JobState.UPLOADING: "primary",
    JobState.SUCCEEDED: "success",
    JobState.FAILED: "danger",
    JobState.CANCELED: "default",
    "stopping": "warning",
}

# Of a job that waits for something which will not change by itself.
WAITING_COLOURS: dict[str, str] = {
    ReasonCode.NO_MATCHING_WORKER: "danger",
    ReasonCode.POOL_PAUSED: "warning",
    ReasonCode.BREAKER_OPEN: "warning",
}

# Why a job waits, in a word for a list.
BRIEF: dict[str, str] = {
    ReasonCode.DEPENDS_ON: "after other jobs",
    ReasonCode.POOL_PAUSED: "paused",
    ReasonCode.BREAKER_OPEN: "breaker open",
    ReasonCode.NO_MATCHING_WORKER: "no worker fits",
    ReasonCode.ORGANIZATION_LIMIT: "limit reached",
    ReasonCode.SOURCE_ADDRESS_LIMIT: "address at its limit",
    ReasonCode.RATE_LIMITED: "rate limited",
    ReasonCode.ALL_WORKERS_BUSY: "workers busy",
}


def brief(reason: WaitReason) -> str:
    return BRIEF.get(reason.code) or f"number {reason.facts['position']}"
