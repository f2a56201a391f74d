"""The policy of a job: set once at submit by its type, copied to its row, read by every verb."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JobPolicy:
    """Durations in seconds. See the columns of the same names in `Job`."""

    max_requeues: int
    automatic_retries: int
    needs_ingest: bool
    complete_beats_cancel: bool
    lease_ttl_seconds: int
    heartbeat_interval_seconds: int
    acknowledge_within_seconds: int
