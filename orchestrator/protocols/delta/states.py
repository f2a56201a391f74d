"""Document 001's words for ours, a table each. Data only."""

from runtime_jobs.states import CancelReason, FailureReason

# Why a lease is stale. The documents have three words, in a closed list, and none for a lease that its own runner has
# ended: that one is unknown among those that still count. `error.details.reason` has our word beside it.
STALE: dict[str, str] = {
    "lease_expired": "LEASE_EXPIRED",
    "lease_revoked": "LEASE_REVOKED",
    "lease_ended": "UNKNOWN_LEASE",
    "unknown_lease": "UNKNOWN_LEASE",
}

# Why a job shall be canceled.
CANCEL: dict[str, str] = {
    CancelReason.REQUESTED: "JOB_CANCELED",
    CancelReason.OPERATOR: "JOB_CANCELED",
    CancelReason.BATCH_CANCELED: "RUN_CANCELED",
    CancelReason.SUPERSEDED: "SUPERSEDED",
    CancelReason.DEPENDENCY_FAILED: "JOB_CANCELED",
    CancelReason.TIMEOUT: "TIMEOUT",
}

# How a runner says that its job has ended. CANCELED is for CancelAck alone.
SUCCEEDED = "SUCCEEDED"
FAILURES: dict[str, FailureReason] = {
    "FAILED": FailureReason.COMMAND_FAILED,
    "TIMED_OUT": FailureReason.TIMED_OUT,
}
CANCELED = "CANCELED"

# The categories of errors, by HTTP status; 4xx and 5xx that have no line here are the first and the last.
STALE_LEASE = "STALE_LEASE"
INVALID_REQUEST = "INVALID_REQUEST"
INTERNAL_ERROR = "INTERNAL_ERROR"
CATEGORIES: dict[int, str] = {
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    409: "INVALID_STATE",
}


def category(status: int) -> str:
    """The documents have no word for most statuses."""
    return CATEGORIES.get(status) or (INVALID_REQUEST if status < 500 else INTERNAL_ERROR)
