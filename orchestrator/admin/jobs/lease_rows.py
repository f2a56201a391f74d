"""The rows of the table of leases in the page of a job."""

from dataclasses import dataclass
from datetime import datetime

from leases.models import Lease
from orchestrator.admin import formatting
from runtime_jobs.identifiers import fingerprint
from workers.models import Worker


@dataclass(frozen=True)
class LeaseTableRow:
    """A lease, identified by its fingerprint: the id itself is a credential."""

    fingerprint: str
    fence: int
    state: str
    worker: Worker
    leased_at: datetime
    duration: str
    expires_in: str
    end_reason: str
    is_open: bool
    is_overdue: bool


def lease_row(lease: Lease, now: datetime) -> LeaseTableRow:
    """Return the row of a lease, as of `now`."""
    left = (lease.expires_at - now).total_seconds()
    return LeaseTableRow(
        fingerprint=fingerprint(lease.lease_ulid),
        fence=lease.fence,
        state=lease.state,
        worker=lease.worker,
        leased_at=lease.leased_at,
        duration=formatting.elapsed(lease.leased_at, lease.completed_at or now),
        expires_in=formatting.format_duration(left),
        end_reason=formatting.humanize(lease.ended_reason),
        is_open=lease.is_open,
        is_overdue=lease.is_open and left <= 0,
    )
