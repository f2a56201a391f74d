"""The policy of a job: set at submit by its type, copied to its row, read by every operation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JobPolicy:
    """Rules for one job; durations in seconds. The columns of `Job` have the same names."""

    max_requeues: int
    automatic_retries: int
    needs_ingest: bool
    complete_beats_cancel: bool
    lease_ttl_seconds: int
    heartbeat_interval_seconds: int
    acknowledge_within_seconds: int
