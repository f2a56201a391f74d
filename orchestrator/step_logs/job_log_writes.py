"""Stores the log of a job as numbered chunks: each once, without gaps.

The log of a step of a workflow job is masked before it is stored, as that of a runner.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime

from leases.fencing import lock_lease, require_valid_lease
from orchestrator.core.counters import SCRUB_REPLACEMENT, count
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.pubsub.job_updates import announcer
from orchestrator.secrets.masks import masks_of
from orchestrator.services import transitions
from orchestrator.step_logs.rows import lock_log, store_and_count
from orchestrator.step_logs.step_log_writes import append_step_log
from runtime_jobs.errors import ChunkConflict, ChunkGap, Invalid
from runtime_jobs.models import Job, JobStep, LogChunk
from runtime_jobs.specs import JOB_TYPES
from workers.models import Worker

MAX_LOG_BYTES = 50 << 20


@dataclass(frozen=True)
class AppendResult:
    """The state of a log after a chunk.

    Attributes:
        next_seq: The number of the next chunk of this step.
        truncated: The log has reached `MAX_LOG_BYTES`; the chunk was dropped.
    """

    next_seq: int
    truncated: bool


@operation
def append_log(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    seq: int,
    chunk: bytes,
    step: int = 0,
    now: datetime | None = None,
) -> AppendResult:
    """Store the next chunk of a step's log. The same chunk again changes nothing.

    The session of the worker does not matter: a restarted worker may deliver what its process before has read.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        seq: The number of the chunk in the step, from 0.
        chunk: The bytes.
        step: The number of the step, from 0.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Invalid: The workflow job has no such step.
        ChunkConflict: Other bytes were stored under this number.
        ChunkGap: An earlier chunk is missing.
    """
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    require_valid_lease(locked)
    if JOB_TYPES[locked.job.job_type].has_steps:
        return _append_masked(uow, locked.job, step, seq, chunk)
    job, digest = locked.job, hashlib.sha256(chunk).hexdigest()
    log = lock_log(job.job_ulid, step)
    expected = log.chunk_count
    if seq < expected:
        _require_same_chunk(job, step, seq, digest)
        return AppendResult(expected, truncated=False)
    if job.log_bytes + len(chunk) > MAX_LOG_BYTES:
        return AppendResult(expected, truncated=True)
    if seq > expected:
        raise ChunkGap(f"seq: chunk {expected} of step {step} is missing. Send it before {seq}.", expected_seq=expected)
    store_and_count(log, chunk, digest=digest, now=locked.now)
    job.log_bytes += len(chunk)
    transitions.mark_changed(uow, job, locked.now)
    uow.after_commit(announcer.announce, job.job_ulid)
    return AppendResult(expected + 1, truncated=False)


def _append_masked(uow: UnitOfWork, job: Job, index: int, seq: int, chunk: bytes) -> AppendResult:
    step = JobStep.objects.filter(job=job, index=index).first()
    if step is None:
        raise Invalid({"step": ["The job has no such step."]})
    if chunk:
        stored = append_step_log(uow, step=step, seq=seq, data=chunk, masks=masks_of(job))
        for value in [SCRUB_REPLACEMENT] * stored.replacements:
            uow.after_commit(count, value)
    return AppendResult(seq + 1, truncated=False)


def _require_same_chunk(job: Job, step: int, seq: int, digest: str) -> None:
    if LogChunk.objects.filter(job=job, step=step, seq=seq).values_list("sha256", flat=True).get() != digest:
        raise ChunkConflict(f"seq: chunk {seq} of step {step} was stored with other bytes.")
