"""Streams the log of a job: the stored part, or until the job has ended."""

from collections.abc import AsyncGenerator, Hashable, Iterator
from contextlib import aclosing
from weakref import WeakKeyDictionary

from django.db import connection

from orchestrator.http.db_scope import release_connection_after
from orchestrator.notifications.hub import NotificationHub, hub_of_running_loop
from orchestrator.notifications.log_hub import ChunkBatch, Hub
from runtime_jobs.models import Job
from runtime_jobs.states import FINAL_STATES

Position = tuple[int, int, int]  # step, number of the chunk within it, offset of the next byte within that
START: Position = (0, 0, 0)
BATCH_BYTES = 64 << 10
CHUNKS_PER_BATCH = 64
STATES_PER_QUERY = 500

# Sizes are read first, without the bytes: a chunk has up to 512 KiB, and only the part that fits into a batch is read.
_READ = """
WITH ahead AS MATERIALIZED (
    SELECT step, seq, octet_length(chunk) AS size FROM runtime_job_log_chunks
     WHERE job_ulid = %(job)s AND (step, seq) >= (%(step)s::int, %(seq)s::int) ORDER BY step, seq LIMIT %(chunks)s
), placed AS (
    SELECT step, seq, size,
           CASE WHEN (step, seq) = (%(step)s::int, %(seq)s::int) THEN %(offset)s::int ELSE 0 END AS skipped,
           sum(size) OVER (ORDER BY step, seq) - size - %(offset)s::int AS before
      FROM ahead
)
SELECT step, seq, size, skipped, substring(l.chunk FROM skipped + 1 FOR %(limit)s::int)
  FROM placed p JOIN runtime_job_log_chunks l USING (step, seq)
 WHERE l.job_ulid = %(job)s AND before < %(limit)s::int
 ORDER BY step, seq
"""


class JobLogs:
    """Reads the log of a job from a position on, in the order of its steps."""

    def read(self, topic: str, position: Position) -> ChunkBatch[Position]:
        """Return up to `BATCH_BYTES` of a log.

        The state of the job is read between two reads of the chunks: no chunk is stored after the end of a job, so the
        second read returns all of them.

        Args:
            topic: The id of the job.
            position: The position of the first byte.
        """
        batch = _chunks(topic, position)
        if batch.position != position or not _has_ended(topic):
            return batch
        batch = _chunks(topic, position)
        return batch._replace(ended=batch.position == position)

    def states(self, topics: list[str]) -> dict[str, Hashable]:
        """Return for each job the size of its log and whether it has ended, by job id."""
        found: dict[str, Hashable] = {}
        for start in range(0, len(topics), STATES_PER_QUERY):
            jobs = Job.objects.filter(job_ulid__in=topics[start : start + STATES_PER_QUERY])
            rows = jobs.values_list("job_ulid", "log_bytes", "state")
            found |= {job_ulid: (log_bytes, state in FINAL_STATES) for job_ulid, log_bytes, state in rows}
        return found


def _has_ended(job_ulid: str) -> bool:
    """Report whether a job has ended or was deleted."""
    state = Job.objects.filter(job_ulid=job_ulid).values_list("state", flat=True).first()
    return state is None or state in FINAL_STATES


def _chunks(job_ulid: str, position: Position) -> ChunkBatch[Position]:
    step, seq, offset = position
    values: dict[str, str | int] = {"job": job_ulid, "step": step, "seq": seq, "offset": offset}
    with connection.cursor() as cursor:
        cursor.execute(_READ, values | {"chunks": CHUNKS_PER_BATCH, "limit": BATCH_BYTES})
        rows = cursor.fetchall()
    data = bytearray()
    for step, seq, size, skipped, chunk in rows:
        if len(data) == BATCH_BYTES:
            break
        part = bytes(chunk)[: BATCH_BYTES - len(data)]
        data += part
        end = skipped + len(part)
        position = (step, seq + 1, 0) if end >= size else (step, seq, end)
    return ChunkBatch(bytes(data), position, ended=False)


_hubs: WeakKeyDictionary[NotificationHub, Hub[Position]] = WeakKeyDictionary()


def _hub() -> Hub[Position]:
    waking = hub_of_running_loop()
    if waking not in _hubs:
        _hubs[waking] = Hub(JobLogs(), waking)
    return _hubs[waking]


async def stream(job_ulid: str, *, follow: bool) -> AsyncGenerator[bytes, None]:
    """Yield the log from its first byte, in batches of at most `BATCH_BYTES`.

    Args:
        job_ulid: The job.
        follow: Continue until the job has ended, instead of ending with the stored part.
    """
    hub = _hub()
    batches = hub.follow(job_ulid, START) if follow else hub.read_to_end(job_ulid, START)
    async with aclosing(batches):
        async for batch in batches:
            yield batch


def stored(job_ulid: str) -> Iterator[bytes]:
    """Yield the stored part of the log, for servers that respond from a thread (WSGI)."""
    read, position = release_connection_after(_chunks), START
    while (batch := read(job_ulid, position)).position != position:
        position = batch.position
        yield batch.data
