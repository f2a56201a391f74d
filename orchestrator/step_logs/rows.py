"""Locks and writes the rows of the log of a step, for both ways to append: as it comes, and masked.

A log call locks no job for itself and writes none. The row of the log orders the calls of one step. All operations lock
in one order: the step, its log, the chunks.
"""

from datetime import datetime
from json import dumps
from typing import Final

from runtime_jobs.models import StepLog
from runtime_jobs.prepared_queries import PreparedQuery, fetch_all
from runtime_jobs.states import ENDED_STEP_STATUSES

MAX_CHUNK_BYTES: Final = 1 << 20  # of a stored row

_LOCK = PreparedQuery(StepLog, "WHERE t.job_ulid = %s AND t.step = %s FOR NO KEY UPDATE")
_LOCK_BY_KEY = PreparedQuery(StepLog, "WHERE t.id = %s FOR NO KEY UPDATE")
_LOCK_STEP = "SELECT status FROM runtime_job_steps WHERE id = %s FOR SHARE"
# The chunks of a log that an earlier release has begun are counted.
_CREATE = """
INSERT INTO step_logs (job_ulid, step, chunk_count, stored_bytes, needs_finalizing)
SELECT %s, %s, coalesce(max(seq) + 1, 0), coalesce(sum(octet_length(chunk)), 0), true
  FROM runtime_job_log_chunks WHERE job_ulid = %s AND step = %s
    ON CONFLICT DO NOTHING RETURNING id"""
_STORE = """
INSERT INTO runtime_job_log_chunks (job_ulid, step, seq, chunk, sha256, created_at)
VALUES (%s, %s, %s, %b, %s, coalesce(%s::timestamptz, clock_timestamp())) RETURNING id"""
_COLUMNS = (
    *("next_seq", "skipped", "chunk_count", "stored_bytes", "held", "held_masked", "waiting_bytes", "waiting_count"),
    *("open_line", "annotation_count", "is_truncated", "closed_at", "closed_bytes", "needs_finalizing"),
    "omitted_forms",
)
_TYPES = {"skipped": "%s::jsonb", "held": "%b", "open_line": "%b"}
ASSIGNMENTS = ", ".join(f"{name} = {_TYPES.get(name, '%s')}" for name in _COLUMNS)
_SAVE = f"UPDATE step_logs SET {ASSIGNMENTS} WHERE id = %s RETURNING id"  # noqa: S608 our own names
_COUNT = "UPDATE step_logs SET chunk_count = %s, stored_bytes = %s, needs_finalizing = true WHERE id = %s RETURNING id"
_STORE_AND_SAVE = f"WITH stored AS ({_STORE}) {_SAVE}"
_STORE_AND_COUNT = f"WITH stored AS ({_STORE}) {_COUNT}"


def lock_log(job_ulid: str, step: int) -> StepLog:
    """Lock and return the log of a step. The first call creates it. Call this within a transaction.

    Args:
        job_ulid: The job.
        step: The index of the step.
    """
    return find_log(job_ulid, step) or create_log(job_ulid, step)


def create_log(job_ulid: str, step: int) -> StepLog:
    """Create, lock and return the log of a step. If another call creates it at the same time, wait for that call.

    Args:
        job_ulid: The job.
        step: The index of the step.
    """
    fetch_all(_CREATE, [job_ulid, step, job_ulid, step])
    found = find_log(job_ulid, step)
    if found is None:
        raise AssertionError("the log was created above")
    return found


def is_step_ended(step_key: int) -> bool:
    """Lock a step against its end, and return whether it has ended. Call this before the first chunk creates its log.

    An end that comes later waits for this transaction. Otherwise it would find no log, and the log would stay open.

    Args:
        step_key: The key of the step.
    """
    return any(status in ENDED_STEP_STATUSES for (status,) in fetch_all(_LOCK_STEP, [step_key]))


def find_log(job_ulid: str, step: int) -> StepLog | None:
    """Lock and return the log of a step, or None: nothing was appended to it."""
    return _LOCK.first(job_ulid, step)


def lock_log_by_key(key: int) -> StepLog | None:
    """Lock and return a log, or None: it was deleted with its job."""
    return _LOCK_BY_KEY.first(key)


def store_and_count(log: StepLog, chunk: bytes, *, digest: str, now: datetime) -> None:
    """Insert the next chunk of a locked log as it came, and write the counters.

    Args:
        log: The log.
        chunk: The bytes.
        digest: Their SHA-256 in hex.
        now: The time of the message.
    """
    inserted = [log.job_id, log.step, log.chunk_count, chunk, digest, now]
    _count(log, chunk)
    fetch_all(_STORE_AND_COUNT, [*inserted, log.chunk_count, log.stored_bytes, log.pk])


def store_and_save(log: StepLog, data: bytes) -> None:
    """Insert masked bytes at the end of a locked log, if there are any, and write all that appending has changed.

    Args:
        log: The log, with its new values.
        data: The bytes.
    """
    pieces = [data[begin : begin + MAX_CHUNK_BYTES] for begin in range(0, len(data), MAX_CHUNK_BYTES)]
    inserted: list[object] = []
    for place, piece in enumerate(pieces, start=1):
        inserted = [log.job_id, log.step, log.chunk_count, piece, "", None]
        _count(log, piece)
        if place < len(pieces):
            fetch_all(_STORE, inserted)
    fetch_all(_STORE_AND_SAVE if pieces else _SAVE, [*inserted, *saved_values(log), log.pk])


def saved_values(log: StepLog) -> list[object]:
    """Return the values of the placeholders in `ASSIGNMENTS`."""
    return [dumps(log.skipped) if name == "skipped" else getattr(log, name) for name in _COLUMNS]


def _count(log: StepLog, chunk: bytes) -> None:
    log.chunk_count += 1
    log.stored_bytes += len(chunk)
