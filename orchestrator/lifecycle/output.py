"""What a job prints, kept as it comes: numbered chunks, each taken once, none missing."""

import hashlib
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max

from leases.fencing import lock_holding, require_live
from orchestrator.lifecycle import moves
from orchestrator.lifecycle.transaction import after_commit, ending, verb
from orchestrator.lifecycle.writing import VerbEnding
from orchestrator.waking.updates import announcer
from runtime_jobs.errors import ChunkConflict, ChunkGap
from runtime_jobs.models import Job, LogChunk
from workers.models import Worker

LOG_LIMIT_BYTES = 50 << 20


@dataclass(frozen=True)
class Taken:
    """`next_seq` is the number that the next chunk of this step must have. `truncated`: the log is full."""

    next_seq: int
    truncated: bool


@verb
def append_log(
    *, lease_ulid: str, worker: Worker, seq: int, chunk: bytes, step: int = 0, now: datetime | None = None
) -> Taken:
    """Keep the next chunk of a step's output. The same chunk again changes nothing.

    No session is asked for: a restarted worker may deliver the end of what its last life has read.
    Raises StaleLease, ChunkConflict (other bytes under this number), ChunkGap (an earlier one is missing)."""
    holding = lock_holding(lease_ulid=lease_ulid, worker=worker, now=now)
    require_live(holding)
    job, digest = holding.job, hashlib.sha256(chunk).hexdigest()
    expected = _next_seq(job, step)
    if seq < expected:
        _require_same(job, step, seq, digest)
        return Taken(expected, truncated=False)
    if job.log_bytes + len(chunk) > LOG_LIMIT_BYTES:
        return Taken(expected, truncated=True)
    if seq > expected:
        raise ChunkGap("An earlier chunk is missing.", expected_seq=expected)
    LogChunk.objects.create(job=job, step=step, seq=seq, chunk=chunk, sha256=digest, created_at=holding.at)
    job.log_bytes += len(chunk)
    moves.store(job, holding.at)
    ending().updated.append(job.job_ulid)
    return Taken(expected + 1, truncated=False)


@after_commit
def announce_updates(done: VerbEnding) -> None:
    """Announce to all processes which jobs ended or have more log."""
    if done.updated:
        announcer.announce(done.updated)


def _next_seq(job: Job, step: int) -> int:
    last = LogChunk.objects.filter(job=job, step=step).aggregate(last=Max("seq"))["last"]
    return 0 if last is None else int(last) + 1


def _require_same(job: Job, step: int, seq: int, digest: str) -> None:
    if LogChunk.objects.filter(job=job, step=step, seq=seq).values_list("sha256", flat=True).get() != digest:
        raise ChunkConflict("This chunk was sent before, with other bytes.")
