"""Stores requests for tasks, and claims due ones: each task is executed by one process at a time.

A claim is a time in the row, not a lock: a transaction that is open for minutes would hold back the readers of events,
which read below the oldest open transaction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection

from orchestrator.housekeeping.models import MAX_ERROR_LENGTH
from orchestrator.housekeeping.registry import KINDS

CLAIM_TIME: Final = timedelta(seconds=60)
FIRST_PAUSE: Final = timedelta(seconds=5)
MAX_PAUSE: Final = timedelta(minutes=15)

_NOW = "coalesce(%(now)s::timestamptz, clock_timestamp())"
# A request during an execution starts another one. A task that waits for its next attempt is brought forward.
_REQUEST = f"""
INSERT INTO housekeeping_tasks AS t (kind, subject, due_at)
SELECT %(kind)s, subject, {_NOW} + %(delay)s::interval FROM unnest(%(subjects)s::text[]) subject ORDER BY subject
    ON CONFLICT (kind, subject) DO UPDATE
   SET due_at = least(t.due_at, excluded.due_at), requested_count = t.requested_count + 1"""  # noqa: S608 our own text
_CREATE = f"""
INSERT INTO housekeeping_tasks (kind, subject, due_at)
SELECT %(kind)s, subject, {_NOW} FROM unnest(%(subjects)s::text[]) subject ORDER BY subject
    ON CONFLICT (kind, subject) DO NOTHING"""  # noqa: S608 our own text
_CLAIM = f"""
UPDATE housekeeping_tasks
   SET claimed_by = %(name)s, claimed_until = {_NOW} + %(claim_time)s, claim_count = claim_count + 1
 WHERE id = (SELECT id FROM housekeeping_tasks
              WHERE due_at <= {_NOW} AND (claimed_until IS NULL OR claimed_until <= {_NOW}) AND kind = ANY (%(kinds)s)
              ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, kind, subject, claim_count, requested_count, failures"""  # noqa: S608 our own text
_RENEW = f"""
UPDATE housekeeping_tasks t SET claimed_until = {_NOW} + %(claim_time)s
  FROM unnest(%(ids)s::bigint[], %(claims)s::bigint[]) mine(id, claim_count)
 WHERE t.id = mine.id AND t.claim_count = mine.claim_count RETURNING t.id"""  # noqa: S608 our own text
_MINE = "id = %(id)s AND claim_count = %(claim_count)s"
_DELETE = f"DELETE FROM housekeeping_tasks WHERE {_MINE} AND (%(always)s OR requested_count = %(requested_count)s)"  # noqa: S608
_SUCCEED = f"""
UPDATE housekeeping_tasks
   SET claimed_by = '', claimed_until = NULL, failures = 0, last_error = '', succeeded_at = {_NOW},
       due_at = CASE WHEN requested_count = %(requested_count)s THEN {_NOW} + %(every)s ELSE due_at END
 WHERE {_MINE}"""  # noqa: S608 our own text
_FAIL = f"""
UPDATE housekeeping_tasks
   SET claimed_by = '', claimed_until = NULL, failures = failures + 1, last_error = %(error)s, failed_at = {_NOW},
       due_at = CASE WHEN %(pause)s::interval IS NULL AND requested_count = %(requested_count)s THEN NULL
                     ELSE {_NOW} + coalesce(%(pause)s, interval '0') END
 WHERE {_MINE}"""  # noqa: S608 our own text
_RELEASE = f"UPDATE housekeeping_tasks SET claimed_by = '', claimed_until = NULL WHERE {_MINE}"  # noqa: S608


@dataclass(frozen=True)
class ClaimedTask:
    """A task that this process executes. `failures` are those before this execution."""

    id: int
    kind: str
    subject: str
    claim_count: int
    requested_count: int
    failures: int

    def values(self, **further: Any) -> dict[str, Any]:
        """Return the parameters of a statement about this claim."""
        return {"id": self.id, "claim_count": self.claim_count, "requested_count": self.requested_count, **further}


def request_task(kind: str, subject: str = "", *, delay: timedelta = timedelta(0), now: datetime | None = None) -> None:
    """Let a task be executed, now or after a delay. It is one statement of the caller's transaction, if there is one.

    A task of this kind and subject that waits is brought forward. One that is being executed is executed again.

    Args:
        kind: A declared kind.
        subject: What it concerns.
        delay: The time until it is due.
        now: The present; by default the time of the database.
    """
    request_tasks(kind, [subject], delay=delay, now=now)


def request_tasks(
    kind: str, subjects: Sequence[str], *, delay: timedelta = timedelta(0), now: datetime | None = None
) -> None:
    """Let tasks of one kind be executed; see `request_task`."""
    if subjects:
        _execute(_REQUEST, {"kind": kind, "subjects": sorted(set(subjects)), "delay": delay, "now": now})


def create_missing(kind: str, subjects: Iterable[str], *, now: datetime | None = None) -> int:
    """Create the tasks of a recurring kind that are missing, due at once. Return their number."""
    return _execute(_CREATE, {"kind": kind, "subjects": sorted(set(subjects)), "now": now})


def create_standing_tasks(*, now: datetime | None = None) -> None:
    """Create the tasks that always exist, as far as they are missing."""
    for kind in KINDS.values():
        if kind.is_standing:
            create_missing(kind.name, [""], now=now)


def claim_task(name: str, *, now: datetime | None = None) -> ClaimedTask | None:
    """Claim the task that has been due for the longest time, or return None.

    Args:
        name: The name of this process, for operators.
        now: The present; by default the time of the database.
    """
    values: dict[str, Any] = {"name": name[:100], "claim_time": CLAIM_TIME, "kinds": list(KINDS), "now": now}
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, values)
        row = cursor.fetchone()
    return ClaimedTask(*row) if row else None


def renew_claims(tasks: Sequence[ClaimedTask], *, now: datetime | None = None) -> set[int]:
    """Prolong claims, and return the keys of the tasks that are still claimed."""
    values: dict[str, Any] = {"ids": [task.id for task in tasks], "claims": [task.claim_count for task in tasks]}
    with connection.cursor() as cursor:
        cursor.execute(_RENEW, values | {"claim_time": CLAIM_TIME, "now": now})
        return {row[0] for row in cursor.fetchall()}


def release_claim(task: ClaimedTask) -> None:
    """Let another process execute the task at once, because this process ends."""
    _execute(_RELEASE, task.values())


def record_success(task: ClaimedTask, *, now: datetime | None = None) -> None:
    """End a claim after a success: a recurring task is due later, another one is deleted unless requested again."""
    every = KINDS[task.kind].every
    if every is None and _execute(_DELETE, task.values(always=False)):
        return
    _execute(_SUCCEED, task.values(every=every() if every else timedelta(0), now=now))


def record_failure(
    task: ClaimedTask, error: str, *, is_permanent: bool = False, jitter: float = 1.0, now: datetime | None = None
) -> None:
    """End a claim after a failure. The task is due again after a pause that doubles with each failure.

    Args:
        task: The task.
        error: The message for operators.
        is_permanent: Whether it is not repeated, unless it was requested again meanwhile.
        jitter: A factor of the pause, so that tasks that failed together are not repeated together.
        now: The present; by default the time of the database.
    """
    pause = None if is_permanent else pause_after(task.failures + 1) * jitter
    _execute(_FAIL, task.values(error=error[:MAX_ERROR_LENGTH], pause=pause, now=now))


def record_gone(task: ClaimedTask) -> None:
    """Delete a task whose subject does not exist any more."""
    _execute(_DELETE, task.values(always=True))


def pause_after(failures: int) -> timedelta:
    """Return the pause after so many failures in a row."""
    return min(FIRST_PAUSE * 2 ** min(failures - 1, 20), MAX_PAUSE)


def _execute(sql: str, values: dict[str, Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)
