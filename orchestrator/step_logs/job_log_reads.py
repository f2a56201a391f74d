"""Streams the log of a job: the stored part, or until the job has ended.

A position has a place in each step. So a reader also gets what arrives for an earlier step after the beginning of a
later one.
"""

from collections.abc import AsyncGenerator, Hashable, Iterator
from contextlib import aclosing
from typing import Final

from django.db import connection

from orchestrator.core.db_scope import release_connection_after
from orchestrator.pubsub.followed_jobs import keep_followed
from orchestrator.pubsub.log_hub import ChunkBatch, hub_of_source, in_reader_thread
from orchestrator.step_logs.step_log_reads import PART_BYTES, LogPosition, read_part
from runtime_jobs.states import FINAL_STATES

Position = tuple[tuple[int, LogPosition], ...]  # the steps that were read so far, each with the next byte
START: Position = ()
PARTS_PER_BATCH: Final = 64
STATES_PER_QUERY: Final = 500

_OVERVIEW = """
SELECT j.state, l.step, l.stored_bytes
  FROM runtime_jobs j LEFT JOIN step_logs l USING (job_ulid) WHERE j.job_ulid = %s ORDER BY l.step"""
_STATES = """
SELECT j.job_ulid, j.state, j.updated_at, l.stored, l.closed, s.statuses
  FROM runtime_jobs j
 CROSS JOIN LATERAL (SELECT sum(stored_bytes) AS stored, count(closed_at) AS closed
                       FROM step_logs WHERE job_ulid = j.job_ulid) l
 CROSS JOIN LATERAL (SELECT string_agg(status, ',' ORDER BY index) AS statuses
                       FROM runtime_job_steps WHERE job_ulid = j.job_ulid) s
 WHERE j.job_ulid = ANY (%s)"""


class JobLogs:
    """Reads the log of a job from a position on: what is missing of the first steps, then of the later ones."""

    def read(self, topic: str, position: Position) -> ChunkBatch[Position]:
        """Return up to `PART_BYTES` of a log.

        The state of the job is read before the chunks. No chunk is stored after the end of a job, so nothing is missed.

        Args:
            topic: The id of the job.
            position: The position of the first byte.
        """
        has_ended, stored = _overview(topic)
        places, data = dict(position), bytearray()
        for _ in range(PARTS_PER_BATCH):
            step = next((step for step, size in stored if places.get(step, LogPosition()).byte < size), None)
            if step is None or len(data) == PART_BYTES:
                break
            place = places.get(step, LogPosition())
            part = read_part(topic, step, place, limit=PART_BYTES - len(data))
            if part.position == place:  # the log was deleted meanwhile
                break
            data += part.data
            places[step] = part.position
        after = tuple(sorted(places.items()))
        return ChunkBatch(bytes(data), after, ended=has_ended and not data and after == position)

    def states(self, topics: list[str]) -> dict[str, Hashable]:
        """Return for each job a value that changes with its log, its steps and its state."""
        return log_states(topics)

    def watch(self, topics: list[str]) -> None:
        """Ask for announcements of these jobs."""
        keep_followed(topics)


def log_states(topics: list[str]) -> dict[str, Hashable]:
    """Return for each job a value that changes with its log, its steps and its state, by job id."""
    found: dict[str, Hashable] = {}
    for start in range(0, len(topics), STATES_PER_QUERY):
        with connection.cursor() as cursor:
            cursor.execute(_STATES, [topics[start : start + STATES_PER_QUERY]])
            found |= {row[0]: row[1:] for row in cursor.fetchall()}
    return found


def _overview(job_ulid: str) -> tuple[bool, list[tuple[int, int]]]:
    """Return whether a job has ended or was deleted, and the length of the log of each step, of one time."""
    with connection.cursor() as cursor:
        cursor.execute(_OVERVIEW, [job_ulid])
        rows = cursor.fetchall()
    return not rows or rows[0][0] in FINAL_STATES, [(step, size) for _, step, size in rows if step is not None]


async def stream(job_ulid: str, *, follow: bool) -> AsyncGenerator[bytes, None]:
    """Yield the log from its first byte, in batches of at most `PART_BYTES`.

    Args:
        job_ulid: The job.
        follow: Continue until the job has ended, instead of ending with the stored part.
    """
    hub = hub_of_source(JobLogs)
    batches = hub.follow(job_ulid, START) if follow else hub.read_to_end(job_ulid, START)
    async with aclosing(batches):
        async for batch in batches:
            yield batch


def stored(job_ulid: str) -> Iterator[bytes]:
    """Yield the stored part of the log, for servers that respond from a thread (WSGI)."""
    read, position = release_connection_after(JobLogs().read), START
    while (batch := read(job_ulid, position)).position != position:
        position = batch.position
        yield batch.data


async def stream_step(job_ulid: str, step: int) -> AsyncGenerator[bytes, None]:
    """Yield the stored part of the log of one step, in parts of at most `PART_BYTES`, for servers of ASGI.

    Args:
        job_ulid: The job.
        step: The index of the step.
    """
    position = LogPosition()
    while (part := await in_reader_thread(read_part, job_ulid, step, position)).position != position:
        position = part.position
        if part.data:
            yield part.data


def stored_step(job_ulid: str, step: int) -> Iterator[bytes]:
    """Yield the same as `stream_step`, for servers that respond from a thread (WSGI).

    Args:
        job_ulid: The job.
        step: The index of the step.
    """
    read, position = release_connection_after(read_part), LogPosition()
    while (part := read(job_ulid, step, position)).position != position:
        position = part.position
        if part.data:
            yield part.data
