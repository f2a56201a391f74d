"""Reads the log of a step from any byte on, whether it is in an object, in rows, or in both.

One statement returns the object and the rows of the same time. The number of a byte never changes, so a reader
continues when rows have moved into an object between two reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.db import connection

from orchestrator.step_logs.objects import read_object
from runtime_jobs.models import JobStep, StepLog

PART_BYTES: Final = 64 << 10
CHUNKS_PER_PART: Final = 512

# Sizes are read first, without the bytes: a chunk has up to 1 MiB, and only what fits into a part is read.
_READ = """
SELECT l.object_key, l.object_bytes, part.seq, part.size, part.skipped, part.data
  FROM step_logs l LEFT JOIN LATERAL (
    WITH ahead AS MATERIALIZED (
        SELECT seq, octet_length(chunk) AS size FROM runtime_job_log_chunks
         WHERE job_ulid = l.job_ulid AND step = l.step AND seq >= %(seq)s ORDER BY seq LIMIT %(chunks)s
    ), placed AS (
        SELECT seq, size, CASE WHEN seq = %(seq)s THEN %(offset)s::int ELSE 0 END AS skipped,
               sum(size) OVER (ORDER BY seq) - size - %(offset)s::int AS before
          FROM ahead
    )
    SELECT p.seq, p.size, p.skipped, substring(c.chunk FROM p.skipped + 1 FOR %(limit)s::int) AS data
      FROM placed p JOIN runtime_job_log_chunks c ON c.job_ulid = l.job_ulid AND c.step = l.step AND c.seq = p.seq
     WHERE p.before < %(limit)s::int
  ) part ON l.object_bytes <= %(byte)s
 WHERE l.job_ulid = %(job)s AND l.step = %(step)s
 ORDER BY part.seq"""
_LOCATE = """
SELECT l.object_bytes, l.chunk_count, c.seq, %(byte)s - c.start
  FROM step_logs l LEFT JOIN LATERAL (
    SELECT seq, octet_length(chunk) AS size,
           l.object_bytes + sum(octet_length(chunk)) OVER (ORDER BY seq) - octet_length(chunk) AS start
      FROM runtime_job_log_chunks WHERE job_ulid = l.job_ulid AND step = l.step
  ) c ON c.start <= %(byte)s AND %(byte)s < c.start + c.size
 WHERE l.job_ulid = %(job)s AND l.step = %(step)s
 ORDER BY c.seq LIMIT 1"""


class LogPosition(NamedTuple):
    """A position in the log of a step.

    Attributes:
        byte: The number of the next byte in the log.
        seq: The number of the stored chunk that has this byte, or of an earlier one if the byte begins a chunk. It
            counts only while the byte is in rows.
        offset: The place of the byte in that chunk.
    """

    byte: int = 0
    seq: int = 0
    offset: int = 0


@dataclass(frozen=True)
class LogPart:
    """A part of a log.

    Attributes:
        data: The bytes; empty at the end.
        position: The position after them.
    """

    data: bytes
    position: LogPosition


def read_part(job_ulid: str, step: int, position: LogPosition, *, limit: int = PART_BYTES) -> LogPart:
    """Return the next bytes of a log.

    Args:
        job_ulid: The job.
        step: The index of the step.
        position: Where to begin.
        limit: Maximum number of bytes.

    Raises:
        OSError: The storage cannot be read.
    """
    values = {"job": job_ulid, "step": step, **position._asdict(), "chunks": CHUNKS_PER_PART, "limit": limit}
    with connection.cursor() as cursor:
        cursor.execute(_READ, values)
        rows = cursor.fetchall()
    if not rows:
        return LogPart(b"", position)
    object_key, object_bytes = rows[0][:2]
    if position.byte < object_bytes:
        block = read_object(object_key, position.byte, min(limit, object_bytes - position.byte))
        return LogPart(block, LogPosition(position.byte + len(block)))
    data, seq, offset = bytearray(), position.seq, position.offset
    for _, _, chunk_seq, size, skipped, chunk in rows:
        if chunk_seq is None or len(data) == limit:
            break
        part = bytes(chunk)[: limit - len(data)]
        data += part
        end = skipped + len(part)
        seq, offset = (chunk_seq + 1, 0) if end >= size else (chunk_seq, end)
    return LogPart(bytes(data), LogPosition(position.byte + len(data), seq, offset))


def locate(job_ulid: str, step: int, byte: int) -> LogPosition:
    """Return the position of a byte, for a reader that knows only its number.

    Args:
        job_ulid: The job.
        step: The index of the step.
        byte: A number up to the length of the log. The length itself is the position of what follows.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LOCATE, {"job": job_ulid, "step": step, "byte": byte})
        found = cursor.fetchone()
    if found is None or byte < found[0]:
        return LogPosition(byte)
    _, chunk_count, seq, offset = found
    return LogPosition(byte, chunk_count) if seq is None else LogPosition(byte, seq, offset)


def log_sizes(job_ulid: str) -> list[tuple[int, int]]:
    """Return the length of the log of each step in bytes, in the order of the steps.

    Args:
        job_ulid: The job.
    """
    return list(StepLog.objects.filter(job_id=job_ulid).order_by("step").values_list("step", "stored_bytes"))


def read_step_log(step: JobStep, start: int = 0) -> Iterator[bytes]:
    """Yield the log of a step from a byte on, as far as it is stored, in parts of at most PART_BYTES.

    Args:
        step: The step.
        start: The number of the first byte.

    Raises:
        OSError: The storage cannot be read.
    """
    position = locate(step.job_id, step.index, start)
    while (part := read_part(step.job_id, step.index, position)).position != position:
        position = part.position
        if part.data:
            yield part.data
