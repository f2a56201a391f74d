"""Terms of document 001 for states, reasons and errors of this server. Data only."""

from runtime_jobs.batch_state import BatchState
from runtime_jobs.states import CancelReason, FailureReason, JobState

# --- runners ----------------------------------------------------------------------------------------------------------

# Reasons why a lease is stale. The documents have a closed list of three terms, and none for a lease that its own
# runner has ended: that one is reported as unknown. `error.details.reason` has the term of this server.
STALE: dict[str, str] = {
    "lease_expired": "LEASE_EXPIRED",
    "lease_revoked": "LEASE_REVOKED",
    "lease_ended": "UNKNOWN_LEASE",
    "unknown_lease": "UNKNOWN_LEASE",
}

# Reasons of a cancel request.
CANCEL: dict[str, str] = {
    CancelReason.REQUESTED: "JOB_CANCELED",
    CancelReason.OPERATOR: "JOB_CANCELED",
    CancelReason.BATCH_CANCELED: "RUN_CANCELED",
    CancelReason.SUPERSEDED: "SUPERSEDED",
    CancelReason.DEPENDENCY_FAILED: "JOB_CANCELED",
    CancelReason.TIMEOUT: "TIMEOUT",
    CancelReason.CONDITION_FALSE: "JOB_CANCELED",
    CancelReason.STOPPED_BY_WORKER: "JOB_CANCELED",
}

# Final statuses that a runner reports. Only CancelAck has CANCELED.
SUCCEEDED = "SUCCEEDED"
FAILURES: dict[str, FailureReason] = {
    "FAILED": FailureReason.COMMAND_FAILED,
    "TIMED_OUT": FailureReason.TIMED_OUT,
}
CANCELED = "CANCELED"

# --- runs -------------------------------------------------------------------------------------------------------------

RUN_STATES: dict[str, str] = {
    BatchState.QUEUED: "QUEUED",
    BatchState.RUNNING: "RUNNING",
    BatchState.CANCEL_REQUESTED: "CANCEL_REQUESTED",
    BatchState.SUCCEEDED: "SUCCESS",
    BatchState.FAILED: "FAILED",
    BatchState.CANCELED: "CANCELED",
    BatchState.TIMED_OUT: "TIMEOUT",
}

# States of a job and of an attempt. STARTING lasts until the first heartbeat, after which the command runs.
RUN_JOB_STATES: dict[str, str] = {
    JobState.BLOCKED: "QUEUED",
    JobState.QUEUED: "QUEUED",
    JobState.LEASED: "LEASED",
    JobState.STARTING: "STARTING",
    JobState.CHECKING_OUT: "STARTING",
    JobState.EXECUTING: "RUNNING",
    JobState.UPLOADING: "UPLOADING",
    JobState.LOST: "RUNNING",
    JobState.PROCESSING: "UPLOADING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.CANCELED: "CANCELED",
}
CANCEL_REQUESTED = "CANCEL_REQUESTED"  # replaces the state while a cancel request is pending
TIMED_OUT = "TIMED_OUT"  # replaces FAILED if the job exceeded its time limit

# --- errors -----------------------------------------------------------------------------------------------------------

STALE_LEASE = "STALE_LEASE"
INVALID_REQUEST = "INVALID_REQUEST"
INTERNAL_ERROR = "INTERNAL_ERROR"
CATEGORIES: dict[int, str] = {
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    409: "INVALID_STATE",
}


def error_category(status: int) -> str:
    """Return the error category of an HTTP status. The documents have none for most statuses."""
    return CATEGORIES.get(status) or (INVALID_REQUEST if status < 500 else INTERNAL_ERROR)
