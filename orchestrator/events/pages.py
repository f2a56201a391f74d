"""Reads the events of all jobs in the order of the feeds, page by page, each page with one statement.

The order is that of the stamps. A page ends below the oldest open transaction: all events there are committed, so an
event that is committed later never belongs before a place that a reader has reached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
from django.db import connection

from runtime_jobs.event_types import ORGANIZATION_EVENT_TYPES
from runtime_jobs.states import FINAL_STATES

JOB, OPERATOR = 0, 1  # the kinds of events: of one job, and of the audit log of operators
_LAST_ID: Final = 2**63 - 1


class Place(NamedTuple):
    """A place in the feed: directly after the event with this stamp, kind and id. Places are ordered as the feed is."""

    stamp: int
    kind: int = JOB
    id: int = 0


class StoredEvent(NamedTuple):
    """An event as it is stored, with what its envelope needs of the job and the lease.

    Attributes:
        place: The place of the event.
        event_id: The id, `evt_…`.
        event_type: For example `job.leased`.
        created_at: The time of the change.
        org_slug: The organization; None for an event of the whole installation.
        job_type: The job type, or None.
        correlation_id: Of the request that caused the job, or None.
        actor: The client, operator, worker or process that caused the event.
        details: The recorded details.
        job_id: The attempt of the job, `rtj_…`; None for an event of an operator. So are all further attributes.
        root_job_id: The first attempt of the job.
        attempt: The number of the attempt.
        seq: The number of the event in the history of the attempt.
        state: The state of the job after the event.
        worker_id: The worker that is concerned, or None.
        lease_id: The lease of that worker, which is a capability, or None.
        seconds: For an end, the seconds since the start; None for a job that was not started.
        exit_code: For an end, the exit code of the command, or None.
        verdict: For an end, the verdict that the worker sent, or None.
        prev_hash: The hash of the event before.
        hash: The hash of the event.
    """

    place: Place
    event_id: str
    event_type: str
    created_at: datetime
    org_slug: str | None
    job_type: str | None
    correlation_id: str | None
    actor: str
    details: dict[str, Any]
    job_id: str | None = None
    root_job_id: str | None = None
    attempt: int | None = None
    seq: int | None = None
    state: str | None = None
    worker_id: str | None = None
    lease_id: str | None = None
    seconds: float | None = None
    exit_code: int | None = None
    verdict: Any = None
    prev_hash: str | None = None
    hash: str | None = None


@dataclass(frozen=True)
class EventPage:
    """Events after a place.

    Attributes:
        events: The events of the requested organizations, in order.
        place: The place up to which events were read, also those of other organizations.
        bound: The stamp of the oldest open transaction: events from there on are read later.
        scanned: How many events were read, of all organizations.
        is_complete: The page reaches the bound.
        seconds_behind: The age of the oldest committed event that is not in this page or an earlier one; else 0.
    """

    events: list[StoredEvent]
    place: Place
    bound: int
    scanned: int
    is_complete: bool
    seconds_behind: float


_OF_JOB = """e.xid, 0 AS kind, e.id, e.event_ulid, e.event_type, e.created_at, e.org_slug, e.job_type,
               e.correlation_id, e.actor_kind || ':' || e.actor_id AS actor, e.payload_json AS details, e.job_ulid,
               e.seq, e.to_state, e.worker_id, e.fence, e.prev_hash, e.hash"""
# An event without a transition has the state of the event before. What is scanned of a job has no gaps, so the history
# is searched once for each job, and not for each event: a job may have thousands without a transition.
_STATES = """numbered AS (
    SELECT scanned.*, count(to_state) OVER (PARTITION BY job_ulid ORDER BY seq) AS transitions FROM scanned
), stated AS (
    SELECT numbered.*, max(to_state) OVER (PARTITION BY job_ulid, transitions) AS state FROM numbered
), earlier AS MATERIALIZED (
    SELECT first.job_ulid, (SELECT p.to_state FROM runtime_job_events p
                             WHERE p.job_ulid = first.job_ulid AND p.seq < first.seq AND p.to_state IS NOT NULL
                             ORDER BY p.seq DESC LIMIT 1) AS state
      FROM (SELECT job_ulid, min(seq) AS seq FROM numbered WHERE transitions = 0 AND job_ulid IS NOT NULL
             GROUP BY job_ulid) first
)"""
_COLUMNS = """s.xid::text::bigint AS stamp, s.kind, s.id, s.event_ulid, s.event_type, s.created_at, s.org_slug,
       s.job_type, s.correlation_id, s.actor, s.details::text, s.job_ulid, j.root_job_ulid, j.attempt, s.seq,
       coalesce(s.state, earlier.state), s.worker_id, l.lease_ulid,
       CASE WHEN s.to_state = ANY (%(final)s::text[]) THEN extract(epoch FROM j.finished_at - j.started_at)::float8 END,
       CASE WHEN s.to_state = ANY (%(final)s::text[]) THEN j.exit_code END,
       CASE WHEN s.to_state = ANY (%(final)s::text[]) THEN (j.result -> 'verdict')::text END, s.prev_hash, s.hash"""
_JOINS = """LEFT JOIN earlier ON earlier.job_ulid = s.job_ulid
  LEFT JOIN runtime_jobs j ON j.job_ulid = s.job_ulid
  LEFT JOIN runtime_worker_leases l ON s.worker_id IS NOT NULL AND l.job_ulid = s.job_ulid AND l.fence = s.fence"""

_OF_OPERATOR = """o.xid, 1, o.id, o.event_ulid, o.action, o.created_at, o.org_slug, o.job_type,
               NULL, o.actor, jsonb_build_object('target', o.target, 'before', o.before, 'after', o.after,
                                                 'reason', o.reason), NULL,
               NULL, NULL, NULL, NULL, NULL, NULL"""

# The limit is a constant of the statement: for an unknown one the planner expects a tenth of all events, and would read
# the whole table of jobs.
_PAGE = f"""
WITH scanned AS MATERIALIZED (
    (SELECT {_OF_JOB}
       FROM runtime_job_events e
      WHERE (e.xid, e.id) > (%(stamp)s::text::xid8, %(after_job_event)s::bigint)
        AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
      ORDER BY e.xid, e.id LIMIT {{rows}})
     UNION ALL
    (SELECT {_OF_OPERATOR}
       FROM operator_events o
      WHERE (o.xid, o.id) > (%(stamp)s::text::xid8, %(after_operator_event)s::bigint)
        AND o.xid < pg_snapshot_xmin(pg_current_snapshot())
        AND o.action = ANY (%(actions)s::text[])
      ORDER BY o.xid, o.id LIMIT {{rows}})
     ORDER BY 1, 2, 3 LIMIT {{rows}}
), {_STATES}, found AS (
    SELECT {_COLUMNS}
      FROM stated s {_JOINS}
     WHERE %(organizations)s::text[] IS NULL OR s.org_slug = ANY (%(organizations)s::text[])
)
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       (SELECT extract(epoch FROM clock_timestamp() - created_at)::float8 FROM runtime_job_events
         WHERE xid >= pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, id LIMIT 1),
       (SELECT count(*) FROM scanned), last.xid::text::bigint, last.kind, last.id,
       extract(epoch FROM clock_timestamp() - last.created_at)::float8, found.*
  FROM (SELECT) one
  LEFT JOIN (SELECT xid, kind, id, created_at FROM scanned ORDER BY xid DESC, kind DESC, id DESC LIMIT 1) last ON true
  LEFT JOIN found ON true
 ORDER BY found.stamp, found.kind, found.id
"""  # noqa: S608 our own text
_PAGE_COLUMNS: Final = 7

_JOB_EVENTS = f"""
WITH scanned AS MATERIALIZED (
    SELECT {_OF_JOB}, attempt.number
      FROM unnest(%(jobs)s::text[], %(numbers)s::integer[]) attempt(job_ulid, number)
      JOIN runtime_job_events e USING (job_ulid)
     WHERE (attempt.number, e.seq) > (%(attempt)s, %(seq)s)
     ORDER BY attempt.number, e.seq LIMIT %(rows)s
), {_STATES}
SELECT {_COLUMNS}
  FROM stated s {_JOINS}
 ORDER BY s.number, s.seq
"""  # noqa: S608 our own text

_NEWEST_EVENTS = f"""
WITH scanned AS MATERIALIZED (
    SELECT wanted.root, newest.*
      FROM unnest(%(roots)s::text[], %(limits)s::integer[]) AS wanted(root, number)
     CROSS JOIN LATERAL (SELECT {_OF_JOB}, a.attempt
              FROM runtime_jobs a JOIN runtime_job_events e USING (job_ulid)
             WHERE a.root_job_ulid = wanted.root
             ORDER BY a.attempt DESC, e.seq DESC LIMIT wanted.number) newest
), {_STATES}
SELECT s.root, {_COLUMNS}
  FROM stated s {_JOINS}
 ORDER BY s.root, s.attempt DESC, s.seq DESC
"""  # noqa: S608 our own text


def read_page(after: Place, *, organizations: Sequence[str] | None, rows: int) -> EventPage:
    """Read events after a place.

    Args:
        after: The place.
        organizations: Only events of these; None: of all, and of the whole installation.
        rows: How many events are read at most, of all organizations.
    """
    values: dict[str, Any] = {
        "stamp": str(after.stamp),
        "after_job_event": after.id if after.kind == JOB else _LAST_ID,
        "after_operator_event": after.id if after.kind == OPERATOR else 0,
        "actions": list(ORGANIZATION_EVENT_TYPES),
        "organizations": None if organizations is None else list(organizations),
        "final": list(FINAL_STATES),
    }
    with connection.cursor() as cursor:
        cursor.execute(_PAGE.format(rows=int(rows)), values)
        found = cursor.fetchall()
    bound, waiting, scanned, stamp, kind, number, age = found[0][:_PAGE_COLUMNS]
    events = [_event(row[_PAGE_COLUMNS:]) for row in found if row[_PAGE_COLUMNS] is not None]
    if scanned < rows:
        # Everything below the bound was read. A place behind the bound stays: another database answers.
        reached, seconds_behind = max(after, Place(bound)), waiting or 0.0
    else:
        reached, seconds_behind = Place(stamp, kind, number), age
    return EventPage(
        events, reached, bound, scanned, is_complete=scanned < rows, seconds_behind=max(0.0, seconds_behind)
    )


def newest_place() -> Place:
    """Return the place of a reader that begins now: events from the oldest open transaction on follow it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        return Place(cursor.fetchone()[0])


def is_future(place: Place) -> bool:
    """Return whether no reader can have reached the place yet."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return place > Place(cursor.fetchone()[0])


def events_of_job(attempts: Sequence[tuple[str, int]], *, after: tuple[int, int], rows: int) -> list[StoredEvent]:
    """Read the events of all attempts of a job, by attempt and number.

    Args:
        attempts: The id and the number of each attempt.
        after: The attempt and the number of the event before the first one.
        rows: How many events are read at most.
    """
    values: dict[str, Any] = {
        "jobs": [job_ulid for job_ulid, _ in attempts],
        "numbers": [number for _, number in attempts],
        "attempt": after[0],
        "seq": after[1],
        "rows": rows,
        "final": list(FINAL_STATES),
    }
    with connection.cursor() as cursor:
        cursor.execute(_JOB_EVENTS, values)
        return [_event(row) for row in cursor.fetchall()]


def newest_events_of_jobs(limits: Mapping[str, int]) -> dict[str, list[StoredEvent]]:
    """Read the newest events of many jobs by root id, the newest first, with one statement.

    Args:
        limits: How many events to read at most, by root id.
    """
    found: dict[str, list[StoredEvent]] = {}
    if not limits:
        return found
    values: dict[str, Any] = {"roots": list(limits), "limits": list(limits.values()), "final": list(FINAL_STATES)}
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST_EVENTS, values)
        for root, *row in cursor.fetchall():
            found.setdefault(root, []).append(_event(row))
    return found


def _event(row: Sequence[Any]) -> StoredEvent:
    stamp, kind, number, event_id, event_type, created_at, org_slug, job_type, correlation_id, actor, details = row[:11]
    *of_job, verdict, prev_hash, digest = row[11:]
    values = (
        Place(stamp, kind, number),
        event_id,
        event_type,
        created_at,
        org_slug,
        job_type,
        correlation_id,
        actor,
        orjson.loads(details),
        *of_job,
        None if verdict is None else orjson.loads(verdict),
        prev_hash,
        digest,
    )
    return StoredEvent._make(values)
