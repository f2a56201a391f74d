"""Deletes jobs that ended long ago, each with all rows that belong to it, and the logs of such jobs.

A unit is deleted whole or not at all: all attempts of a job, and all jobs of a batch. A unit stays while one of its
jobs is younger or has not ended, while a run waits for its upload, and while a job outside the unit depends on it: a
job that was canceled or failed may be retried, and then its dependencies count again.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from django.db import connection

from orchestrator.services.unit_of_work import UnitOfWork, operation
from runtime_jobs.events import delete_events

# The name of a job's unit, and the condition that keeps a job of any age. `maintenance.pruning` uses both.
UNIT = "coalesce('batch ' || {0}.batch_id, {0}.root_job_ulid)"
KEEPS = """(EXISTS (SELECT FROM runtime_ended_dependencies e WHERE e.root_job_ulid = {0}.root_job_ulid)
    OR EXISTS (SELECT FROM runtime_unsent_runs r WHERE r.job_ulid = {0}.job_ulid
                  AND NOT EXISTS (SELECT FROM runtime_jobs s
                                   WHERE s.root_job_ulid = {0}.root_job_ulid AND s.state = 'succeeded')))"""

_MEMBERS = """
WITH named AS (SELECT DISTINCT batch_id, root_job_ulid FROM runtime_jobs WHERE id = ANY (%s))
SELECT j.id FROM named n JOIN runtime_jobs j ON j.root_job_ulid = n.root_job_ulid
 UNION
SELECT j.id FROM named n JOIN runtime_jobs j ON j.batch_id = n.batch_id"""
# Locked jobs are skipped: another operation is changing them. A later pass deletes them.
_LOCK = "SELECT id FROM runtime_jobs WHERE id = ANY (%s) ORDER BY id FOR UPDATE SKIP LOCKED"
# A statement of its own after the locks: it sees an attempt that was added meanwhile and is not locked.
_DELETABLE = f"""
WITH named AS (SELECT DISTINCT batch_id, root_job_ulid FROM runtime_jobs WHERE id = ANY (%(locked)s)),
member AS (
    SELECT j.id, j.job_ulid, j.root_job_ulid, j.batch_id, j.finished_at
      FROM named n JOIN runtime_jobs j ON j.root_job_ulid = n.root_job_ulid
     UNION
    SELECT j.id, j.job_ulid, j.root_job_ulid, j.batch_id, j.finished_at
      FROM named n JOIN runtime_jobs j ON j.batch_id = n.batch_id)
SELECT array_agg(m.job_ulid), max(m.batch_id) FROM member m
 GROUP BY {UNIT.format("m")}
HAVING bool_and(m.id = ANY (%(locked)s) AND coalesce(m.finished_at < %(before)s, false) AND NOT {KEEPS.format("m")}
       AND NOT EXISTS (SELECT FROM runtime_job_dependencies d JOIN runtime_jobs waiting USING (job_ulid)
                        WHERE d.on_job_ulid = m.job_ulid AND {UNIT.format("waiting")} <> {UNIT.format("m")}))"""  # noqa: S608 our own text
# In the order of their foreign keys. Events are deleted by `delete_events`.
_DEPENDENT_ROWS = (
    ("runtime_job_dependencies", "job_ulid = ANY (%(jobs)s) OR on_job_ulid = ANY (%(jobs)s)"),
    ("runtime_job_log_chunks", "job_ulid = ANY (%(jobs)s)"),
    ("runtime_unsent_runs", "job_ulid = ANY (%(jobs)s)"),
    ("runtime_job_artifacts", "job_ulid = ANY (%(jobs)s)"),
    ("runtime_failure_explanations", "job_ulid = ANY (%(jobs)s)"),
    ("runtime_worker_leases", "job_ulid = ANY (%(jobs)s)"),
    ("runtime_jobs", "job_ulid = ANY (%(jobs)s)"),
    ("runtime_batches", "id = ANY (%(batches)s)"),
)


@operation
def delete_finished_jobs(_: UnitOfWork, *, job_ids: Sequence[int], finished_before: datetime) -> Counter[str]:
    """Delete the units of these jobs, as far as they may be deleted.

    Args:
        job_ids: Keys of jobs.
        finished_before: All jobs of a unit must have ended before this time.

    Returns:
        The number of deleted rows by table.
    """
    deleted: Counter[str] = Counter()
    with connection.cursor() as cursor:
        cursor.execute(_MEMBERS, [list(job_ids)])
        cursor.execute(_LOCK, [[row[0] for row in cursor.fetchall()]])
        locked = [row[0] for row in cursor.fetchall()]
        cursor.execute(_DELETABLE, {"locked": locked, "before": finished_before})
        units = cursor.fetchall()
        jobs = [job_ulid for members, _ in units for job_ulid in members]
        if not jobs:
            return deleted
        deleted["runtime_job_events"] = delete_events(jobs)
        values = {"jobs": jobs, "batches": [batch for _, batch in units if batch is not None]}
        for table, rows in _DEPENDENT_ROWS:
            cursor.execute(f"DELETE FROM {table} WHERE {rows}", values)  # noqa: S608 our own names
            deleted[table] = cursor.rowcount
    return deleted


@operation
def delete_log(_: UnitOfWork, *, job_ulid: str, finished_before: datetime) -> int:
    """Delete the log of a job that ended before this time, and return the number of its chunks."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM runtime_jobs WHERE job_ulid = %s AND finished_at < %s FOR UPDATE SKIP LOCKED",
            [job_ulid, finished_before],
        )
        if cursor.fetchone() is None:
            return 0
        cursor.execute("DELETE FROM runtime_job_log_chunks WHERE job_ulid = %s", [job_ulid])
        return int(cursor.rowcount)
