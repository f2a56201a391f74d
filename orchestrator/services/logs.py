"""What a job prints, kept as it comes: numbered chunks, each taken once, none missing."""

import hashlib
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max

from leases.fencing import lock_lease, require_valid_lease
from orchestrator.notifications.job_updates import announcer
from orchestrator.services import transitions
from orchestrator.services.unit_of_work.operation import lane_updates, on_operation_committed, operation
from orchestrator.services.unit_of_work.pending import PendingChanges
from runtime_jobs.errors import ChunkConflict, ChunkGap
from runtime_jobs.models import Job, LogChunk
from workers.models import Worker

MAX_LOG_BYTES = 50 << 20


@dataclass(frozen=True)
class AppendResult:
    """`next_seq` is the number that the next chunk of this step must have. `truncated`: the log is full."""

    next_seq: int
    truncated: bool


@operation
def append_log(
    *, lease_ulid: str, worker: Worker, seq: int, chunk: bytes, step: int = 0, now: datetime | None = None
) -> AppendResult:
    """Keep the next chunk of a step's output. The same chunk again changes nothing.

    No session is asked for: a restarted worker may deliver the end of what its last life has read.
    Raises StaleLease, ChunkConflict (other bytes under this number), ChunkGap (an earlier one is missing)."""
    holding = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    require_valid_lease(holding)
    job, digest = holding.job, hashlib.sha256(chunk).hexdigest()
    expected = _next_seq(job, step)
    if seq < expected:
        _require_same(job, step, seq, digest)
        return AppendResult(expected, truncated=False)
    if job.log_bytes + len(chunk) > MAX_LOG_BYTES:
        return AppendResult(expected, truncated=True)
    if seq > expected:
        raise ChunkGap("An earlier chunk is missing.", expected_seq=expected)
    LogChunk.objects.create(job=job, step=step, seq=seq, chunk=chunk, sha256=digest, created_at=holding.at)
    job.log_bytes += len(chunk)
    transitions.mark_dirty(job, holding.at)
    lane_updates().updated.append(job.job_ulid)
    return AppendResult(expected + 1, truncated=False)


@on_operation_committed
def announce_updates(done: PendingChanges) -> None:
    """Announce to all processes which jobs ended or have more log."""
    if done.updated:
        announcer.announce(done.updated)


def _next_seq(job: Job, step: int) -> int:
    last = LogChunk.objects.filter(job=job, step=step).aggregate(last=Max("seq"))["last"]
    return 0 if last is None else int(last) + 1


def _require_same(job: Job, step: int, seq: int, digest: str) -> None:
    if LogChunk.objects.filter(job=job, step=step, seq=seq).values_list("sha256", flat=True).get() != digest:
        raise ChunkConflict("This chunk was sent before, with other bytes.")
