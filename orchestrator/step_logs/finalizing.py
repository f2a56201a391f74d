"""Moves the log of an ended step from rows into an object, without a time at which a byte is in neither.

1. The row of the log counts the attempt. The attempt writes an object of its own name: what the last object has, and
   the rows that exist now.
2. In one transaction the row names the new object and its length, and the rows that it has are deleted. If another
   attempt has begun meanwhile, the transaction changes nothing.

A process may be killed at every point. Until the transaction has committed, the log consists of the old object and all
rows; afterwards of the new object and the rows that came later. Chunks that arrive meanwhile stay rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.db import connection, models, transaction
from django.db.models.functions import Length

from orchestrator.pubsub.job_updates import announcer
from orchestrator.step_logs import objects, step_log_writes
from orchestrator.step_logs.rows import lock_log_by_key
from runtime_jobs.models import DiscardedLogObject, JobStep, LogChunk, StepLog
from runtime_jobs.states import FINAL_STATES

ROWS_PER_QUERY: Final = 1000
BYTES_PER_QUERY: Final = 4 << 20
LOGS_PER_SCAN: Final = 500


@dataclass(frozen=True)
class Attempt:
    """An attempt to write an object.

    Attributes:
        job_ulid: The job.
        step: The index of the step.
        number: The number of the attempt.
        name: The name of its object.
        chunks: The number of chunks of the log that the object will have, from the first one on.
        size: Their size in bytes.
        object_key: The object until now, or empty.
        object_bytes: Its size.
    """

    job_ulid: str
    step: int
    number: int
    name: str
    chunks: int
    size: int
    object_key: str
    object_bytes: int


def finalize_step_log(step_id: int) -> bool:
    """Put the log of an ended step into its object. Return whether there was anything to do.

    Args:
        step_id: The key of the `JobStep`.
    """
    step = JobStep.objects.filter(pk=step_id).first()
    log = step and StepLog.objects.filter(job_id=step.job_id, step=step.index).first()
    return log is not None and finalize_log(log.pk)


def finalize_log(key: int) -> bool:
    """Put the log of an ended step, of any job type, into an object. Repeats change nothing.

    Args:
        key: The key of the `StepLog`.

    Returns:
        Whether there was anything to do.

    Raises:
        OSError: The storage refused the object, or does not have the last one.
        EOFError: Bytes of the log are missing.
    """
    step_log_writes.flush_late_chunks(key=key)
    attempt = begin_attempt(key)
    if attempt is None:
        return False
    try:
        objects.write_object(attempt.name, _content(key, attempt))
    except _OvertakenError:
        return False
    return commit_attempt(key, attempt)


def logs_to_finalize(limit: int = LOGS_PER_SCAN) -> list[int]:
    """Return the keys of logs whose step or job has ended, and that may have bytes in rows."""
    ended = """SELECT l.id FROM step_logs l WHERE l.needs_finalizing AND (l.closed_at IS NOT NULL OR EXISTS (
        SELECT FROM runtime_jobs j WHERE j.job_ulid = l.job_ulid AND j.state = ANY (%s))) ORDER BY l.id LIMIT %s"""
    with connection.cursor() as cursor:
        cursor.execute(ended, [list(FINAL_STATES), limit])
        return [row[0] for row in cursor.fetchall()]


def begin_attempt(key: int) -> Attempt | None:
    """Count a new attempt, or return None if every byte of the log is in its object."""
    with transaction.atomic(durable=True):
        log = lock_log_by_key(key)
        if log is None:
            return None
        if log.stored_bytes <= log.object_bytes:
            StepLog.objects.filter(pk=key).update(needs_finalizing=log.held is not None)
            return None
        number = log.attempts + 1
        name = objects.object_name(log, number)
        before = objects.object_name(log, log.attempts) if log.attempts else ""
        if before != log.object_key:  # that attempt was interrupted
            _discard(before)
        StepLog.objects.filter(pk=key).update(attempts=number)
    return Attempt(
        log.job_id, log.step, number, name, log.chunk_count, log.stored_bytes, log.object_key, log.object_bytes
    )


def commit_attempt(key: int, attempt: Attempt) -> bool:
    """Let the log name the new object, and delete the rows that it has.

    Args:
        key: The key of the log.
        attempt: The attempt. Its object is complete.

    Returns:
        False if another attempt has begun, or the log was deleted meanwhile. The object is discarded then.
    """
    with transaction.atomic(durable=True):
        step = JobStep.objects.filter(job_id=attempt.job_ulid, index=attempt.step)
        step.select_for_update(no_key=True).only("pk").first()  # before the log, as at the end of a step
        log = lock_log_by_key(key)
        if log is None or log.attempts != attempt.number:
            _discard(attempt.name)
            return False
        remains = log.stored_bytes > attempt.size or log.held is not None
        StepLog.objects.filter(pk=key).update(
            object_key=attempt.name, object_bytes=attempt.size, needs_finalizing=remains
        )
        LogChunk.objects.filter(job_id=log.job_id, step=log.step, seq__lt=attempt.chunks).delete()
        step.update(log_object_key=attempt.name, log_byte_count=attempt.size)
        _discard(attempt.object_key)
    announcer.announce([log.job_id])
    return True


class _OvertakenError(Exception):
    """Rows are missing, because another attempt has moved them."""


def _content(key: int, attempt: Attempt) -> Iterator[bytes]:
    """Yield what the object will have. A few MiB are in memory at a time.

    Raises:
        EOFError: Bytes are missing, and no other attempt has moved them.
    """
    size, after = 0, -1
    if attempt.object_key:
        for block in objects.read_blocks(attempt.object_key, attempt.object_bytes):
            size += len(block)
            yield block
    rows = LogChunk.objects.filter(job_id=attempt.job_ulid, step=attempt.step, seq__lt=attempt.chunks)
    while page := _next_page(rows, after):
        for _, chunk in sorted(rows.filter(seq__in=page).values_list("seq", "chunk")):
            size += len(chunk)
            yield bytes(chunk)
        after = page[-1]
    if size != attempt.size:
        if StepLog.objects.filter(pk=key, attempts=attempt.number).exists():
            raise EOFError(f"log {key}: {size} of {attempt.size} bytes were found in the object and in rows")
        raise _OvertakenError


def _next_page(rows: "models.QuerySet[LogChunk]", after: int) -> list[int]:
    """Return the numbers of the next chunks that together have about BYTES_PER_QUERY, one at least."""
    page: list[int] = []
    size = 0
    sizes = rows.filter(seq__gt=after).order_by("seq").annotate(size=Length("chunk")).values_list("seq", "size")
    for seq, length in sizes[:ROWS_PER_QUERY]:
        if page and size + length > BYTES_PER_QUERY:
            break
        page.append(seq)
        size += length
    return page


def _discard(name: str) -> None:
    """Let housekeeping delete an object later. A reader may just read it, or an attempt may just write it."""
    if name:
        DiscardedLogObject.objects.bulk_create([DiscardedLogObject(name=name)], ignore_conflicts=True)
