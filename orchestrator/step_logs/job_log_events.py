"""The live log of a job as Server-Sent Events: `chunk`, `step` and `end`, each with an id that continues the stream.

An id has a place in the log of each step: the number of the next byte and the status that was sent. Bytes keep their
numbers when a log moves into an object, so an id is valid as long as the job exists. Steps at the beginning whose end
and whole log were sent need no place of their own: `3-3.4096.1` has all of steps 0, 1 and 2.

Events of one position are rendered once for all followers.
"""

import re
from collections.abc import AsyncGenerator, Hashable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
from django.db import connection

from orchestrator.pubsub.followed_jobs import keep_followed
from orchestrator.pubsub.log_hub import ChunkBatch, hub_of_source, in_reader_thread
from orchestrator.pubsub.metrics import PACK_RUN_LOG_LAG
from orchestrator.step_logs.job_log_reads import log_states
from orchestrator.step_logs.step_log_reads import PART_BYTES, LogPosition, locate, read_part
from runtime_jobs.states import ENDED_STEP_STATUSES, FINAL_STATES, StepStatus

MAX_ID_LENGTH: Final = 4096
EVENTS_PER_BATCH: Final = 200
QUEUED, RUNNING, ENDED = range(3)  # the rank of a step's status

_ID = re.compile(r"(\d{1,9})((?:-\d{1,9}\.\d{1,15}\.[012])*)", re.ASCII)
_OVERVIEW = """
SELECT j.state, j.status, j.exit_code,
       CASE WHEN j.job_type = 'pack-run' AND j.finished_at IS NULL THEN (
            SELECT extract(epoch FROM clock_timestamp() - c.created_at)::float8 FROM runtime_job_log_chunks c
             WHERE c.job_ulid = j.job_ulid ORDER BY c.step DESC, c.seq DESC LIMIT 1) END,
       coalesce(s.index, l.step), s.id, s.name, s.step_id, s.status, s.conclusion, s.started_at,
       s.completed_at, coalesce(l.stored_bytes, 0), l.closed_at IS NOT NULL, coalesce(l.closed_bytes, 0)
  FROM runtime_jobs j
  LEFT JOIN ((SELECT * FROM runtime_job_steps WHERE job_ulid = %(job)s) s
        FULL JOIN (SELECT * FROM step_logs WHERE job_ulid = %(job)s) l ON l.step = s.index) ON true
 WHERE j.job_ulid = %(job)s ORDER BY 5"""


class StepPlace(NamedTuple):
    """A place in one step: the bytes and the status that were sent.

    Attributes:
        step: The index of the step.
        position: The next byte of its log.
        rank: The status that was sent: QUEUED, RUNNING or ENDED.
    """

    step: int
    position: LogPosition = LogPosition()
    rank: int = QUEUED


class EventPosition(NamedTuple):
    """A position in the events of a job.

    Attributes:
        complete: The number of steps at the beginning of which everything was sent.
        places: The places in later steps, and in earlier ones whose log has grown after their end.
    """

    complete: int = 0
    places: tuple[StepPlace, ...] = ()

    def __str__(self) -> str:
        """Return the id of an event after which a stream continues here."""
        return f"{self.complete}" + "".join(f"-{step}.{place.byte}.{rank}" for step, place, rank in self.places)


START: Final = EventPosition()


@dataclass(frozen=True)
class StepRow:
    """A step and its log as they are at present. `status` is None where the type of the job has no steps."""

    index: int
    key: int | None
    name: str | None
    step_id: str | None
    status: str | None
    conclusion: str | None
    started_at: datetime | None
    completed_at: datetime | None
    stored_bytes: int
    is_closed: bool
    closed_bytes: int

    @property
    def rank(self) -> int:
        """The rank of the status."""
        if self.status is None or self.status == StepStatus.QUEUED:
            return QUEUED
        return ENDED if self.status in ENDED_STEP_STATUSES else RUNNING

    @property
    def has_ended(self) -> bool:
        """Whether the step and its log have ended."""
        return self.rank == ENDED and (self.is_closed or not self.stored_bytes)

    def event(self) -> dict[str, Any]:
        """Return the content of its event."""
        return {
            "step": self.index,
            "id": self.key,
            "step_id": self.step_id,
            "name": self.name,
            "status": self.status,
            "conclusion": self.conclusion,
            "started_at": self.started_at,
            "completed_at": self.completed_at,
        }


@dataclass(frozen=True)
class Overview:
    """A job and its steps, of one time. `state` is None for a job that was deleted.

    Attributes:
        state: The state of the job.
        status: Its public status.
        steps: Its steps.
        log_age: The seconds since the newest chunk of a pack run that has not ended; None for all other jobs.
        exit_code: The exit code that its worker reported, or None.
    """

    state: str | None
    status: str | None
    steps: list[StepRow]
    log_age: float | None = None
    exit_code: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing can follow."""
        return self.state is None or self.state in FINAL_STATES


def overview(job_ulid: str) -> Overview:
    """Read a job, its steps and the length of their logs with one statement."""
    with connection.cursor() as cursor:
        cursor.execute(_OVERVIEW, {"job": job_ulid})
        rows = cursor.fetchall()
    if not rows:
        return Overview(None, None, [])
    state, status, exit_code, log_age, *_ = rows[0]
    steps = [StepRow(*row[4:]) for row in rows if row[4] is not None]
    return Overview(state, status, steps, log_age, exit_code)


class JobLogEvents:
    """Reads the events of a job from a position on."""

    def read(self, topic: str, position: EventPosition) -> ChunkBatch[EventPosition]:
        """Return events with about PART_BYTES of output, and at last the `end`.

        Args:
            topic: The id of the job.
            position: The position of the first event.
        """
        found = overview(topic)
        batch = _Batch(topic, position, found)
        batch.collect()
        result = batch.result()
        if result.data and found.log_age is not None and position != START:  # the begin of a log may be old
            PACK_RUN_LOG_LAG.observe(found.log_age)
        return result

    def states(self, topics: list[str]) -> dict[str, Hashable]:
        """Return for each job a value that changes with its log, its steps and its state."""
        return log_states(topics)

    def watch(self, topics: list[str]) -> None:
        """Ask for announcements of these jobs."""
        keep_followed(topics)


class _Batch:
    """Collects the events after a position."""

    def __init__(self, job_ulid: str, start: EventPosition, found: Overview) -> None:
        self._job, self._start, self._found = job_ulid, start, found
        self._complete = start.complete
        self._places = {place.step: place for place in start.places}
        self._events: list[bytes] = []
        self._size = 0

    def collect(self) -> None:
        """Collect what the batch has room for, in the order of the steps."""
        for row in self._found.steps:
            while not self._is_full and self._add_next(row):
                pass
            if self._is_full:
                return

    def result(self) -> ChunkBatch[EventPosition]:
        """Return the events, or the end if there are none and nothing can follow."""
        after = self._position()
        if self._events or self._is_full or not self._found.has_ended:
            return ChunkBatch(b"".join(self._events), after, ended=False)
        found = self._found
        end = {"status": found.status, "state": found.state, "exit_code": found.exit_code}
        return ChunkBatch(_event("end", end, after), after, ended=True)

    @property
    def _is_full(self) -> bool:
        return self._size >= PART_BYTES or len(self._events) >= EVENTS_PER_BATCH

    def _add_next(self, row: StepRow) -> bool:
        """Add the next event of a step. Returns whether there was one."""
        place = self._place(row)
        if row.rank == RUNNING and place.rank == QUEUED:
            self._add("step", row.event(), place._replace(rank=RUNNING))
            return True
        if place.position.byte < row.stored_bytes and self._add_output(row, place):
            return True
        if row.rank == ENDED and place.rank < ENDED and self._place(row).position.byte >= row.stored_bytes:
            self._add("step", row.event(), place._replace(rank=ENDED))
            return True
        return False

    def _add_output(self, row: StepRow, place: StepPlace) -> bool:
        """Add the next output of a step. Only whole characters are sent while more can follow."""
        part = read_part(self._job, row.index, place.position, limit=max(4, PART_BYTES - self._size))
        can_grow = not (row.is_closed or self._found.has_ended)
        cut = _unfinished_character(part.data)
        if cut and (can_grow or part.position.byte < row.stored_bytes):
            if cut == len(part.data):
                return False
            part = read_part(self._job, row.index, place.position, limit=len(part.data) - cut)
        if not part.data:
            self._places[row.index] = place._replace(position=part.position)
            return False
        self._size += len(part.data)
        content = {"step": row.index, "offset": place.position.byte, "text": part.data.decode(errors="replace")}
        self._add("chunk", content, place._replace(position=part.position))
        return True

    def _add(self, name: str, content: dict[str, Any], place: StepPlace) -> None:
        self._places[place.step] = place
        self._events.append(_event(name, content, self._position()))

    def _place(self, row: StepRow) -> StepPlace:
        """Return what was sent of a step."""
        found = self._places.get(row.index)
        if found is None and row.index < self._complete:
            found = StepPlace(row.index, LogPosition(row.closed_bytes), ENDED)
            if row.stored_bytes > row.closed_bytes:
                found = found._replace(position=locate(self._job, row.index, row.closed_bytes))
        return found or StepPlace(row.index)

    def _position(self) -> EventPosition:
        """Return the position after the events so far, without places of steps of which everything was sent."""
        by_index = {row.index: row for row in self._found.steps}
        while (row := by_index.get(self._complete)) is not None and self._is_complete(row):
            self._complete += 1
        kept = [
            place
            for step, place in sorted(self._places.items())
            if step >= self._complete or place.position.byte != by_index[step].closed_bytes
        ]
        return EventPosition(self._complete, tuple(kept))

    def _is_complete(self, row: StepRow) -> bool:
        place = self._place(row)
        return row.has_ended and place.rank == ENDED and place.position.byte >= row.closed_bytes


def _event(name: str, content: dict[str, Any], after: EventPosition) -> bytes:
    """Render an event. JSON escapes line ends, so the content is one line."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(after).encode(), name.encode(), orjson.dumps(content))


class LogEvent(NamedTuple):
    """An event of a log.

    Attributes:
        id: The id after which a stream continues.
        name: `chunk`, `step` or `end`.
        content: Its members.
    """

    id: str
    name: str
    content: dict[str, Any]


def parse_events(batch: bytes) -> Iterator[LogEvent]:
    """Yield the events of a batch, for protocols other than Server-Sent Events. A batch is rendered once for all."""
    for event in batch.split(b"\n\n")[:-1]:
        number, name, data = (line.split(b": ", 1)[1] for line in event.split(b"\n"))
        yield LogEvent(number.decode(), name.decode(), orjson.loads(data))


def _unfinished_character(data: bytes) -> int:
    """Return the number of bytes at the end that begin a character of UTF-8 of which the rest is missing."""
    for size in range(1, min(3, len(data)) + 1):
        byte = data[-size]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return size if needed > size and byte < 0xF8 else 0
        if byte < 0x80:
            return 0
    return 0


def position_of(job_ulid: str, event_id: str) -> EventPosition:
    """Return the position after an event. An id that cannot be one of this job begins at the start.

    Args:
        job_ulid: The job.
        event_id: The `Last-Event-ID` of a client.
    """
    found = _ID.fullmatch(event_id) if len(event_id) <= MAX_ID_LENGTH else None
    if found is None:
        return START
    places = [_numbers(part) for part in found[2].split("-")[1:]]
    steps = {row.index: row for row in overview(job_ulid).steps}
    complete = int(found[1])
    is_possible = (
        all(step in steps and steps[step].has_ended for step in range(min(complete, len(steps) + 1)))
        and [step for step, _, _ in places] == sorted({step for step, _, _ in places})
        and all(step in steps and byte <= steps[step].stored_bytes for step, byte, _ in places)
        and all(rank <= steps[step].rank for step, _, rank in places)
        and all(byte > steps[step].closed_bytes for step, byte, _ in places if step < complete)
    )
    if not is_possible:
        return START
    return EventPosition(
        complete, tuple(StepPlace(step, locate(job_ulid, step, byte), rank) for step, byte, rank in places)
    )


def _numbers(part: str) -> tuple[int, int, int]:
    step, byte, rank = map(int, part.split("."))
    return step, byte, rank


async def events(job_ulid: str, event_id: str, *, idle_seconds: float) -> AsyncGenerator[bytes, None]:
    """Yield the events of a job after an event until the job has ended, several at a time.

    Args:
        job_ulid: The job.
        event_id: The id of the last event that the client has; empty: from the beginning.
        idle_seconds: Yield empty bytes each time that there is no event for so long.
    """
    start = await in_reader_thread(position_of, job_ulid, event_id) if event_id else START
    batches = hub_of_source(JobLogEvents).follow(job_ulid, start, idle_seconds=idle_seconds)
    async with aclosing(batches):
        async for batch in batches:
            yield batch
