"""Document 001's words for where runs, jobs and attempts stand. Data only."""

from runtime_jobs.batch_state import BatchState
from runtime_jobs.states import JobState

RUN: dict[str, str] = {
    BatchState.QUEUED: "QUEUED",
    BatchState.RUNNING: "RUNNING",
    BatchState.CANCEL_REQUESTED: "CANCEL_REQUESTED",
    BatchState.SUCCEEDED: "SUCCESS",
    BatchState.FAILED: "FAILED",
    BatchState.CANCELED: "CANCELED",
    BatchState.TIMED_OUT: "TIMEOUT",
}

# Of a job and of an attempt alike. STARTING lasts until the first heartbeat, when the command runs.
JOB: dict[str, str] = {
    JobState.BLOCKED: "QUEUED",
    JobState.QUEUED: "QUEUED",
    JobState.LEASED: "LEASED",
    JobState.STARTING: "STARTING",
    JobState.CHECKING_OUT: "STARTING",
    JobState.EXECUTING: "RUNNING",
    JobState.UPLOADING: "UPLOADING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.CANCELED: "CANCELED",
}
CANCEL_REQUESTED = "CANCEL_REQUESTED"  # instead, while one that does not wait has not obeyed
TIMED_OUT = "TIMED_OUT"  # a failure for that reason
