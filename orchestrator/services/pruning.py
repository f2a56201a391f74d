"""Deletes jobs that ended long ago, each with all rows that belong to it, and the logs of such jobs.

A unit is deleted whole or not at all: all attempts of a job, and all jobs of a batch. A unit stays while one of its
jobs is younger or has not ended, while a run waits for its upload, and while a job outside the unit depends on it: a
job that was canceled or failed may be retried, and then its dependencies count again. A workflow run has a period of
its own, and a pinned one is never deleted. Nothing of an organization in incident mode is deleted.

Objects of the storages are not deleted here, because a transaction cannot undo that. Their rows mark them, and
housekeeping deletes them.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.incidents.incident_mode import KEPT_ORGANIZATIONS
from orchestrator.incidents.models import IncidentMode
from runtime_jobs.db_time import database_now
from runtime_jobs.events import delete_events
from runtime_jobs.models import LogChunk, StepLog, StoredArtifact

# The name of a job's unit, and the condition that keeps a job of any age. `maintenance.pruning` uses both.
UNIT = "coalesce('batch ' || {0}.batch_id, {0}.root_job_ulid)"
KEEPS = f"""({{0}}.org_slug IN ({KEPT_ORGANIZATIONS})
    OR EXISTS (SELECT FROM runtime_ended_dependencies e WHERE e.root_job_ulid = {{0}}.root_job_ulid)
    OR EXISTS (SELECT FROM runtime_unsent_runs r WHERE r.job_ulid = {{0}}.job_ulid
                  AND NOT EXISTS (SELECT FROM runtime_jobs s
                                   WHERE s.root_job_ulid = {{0}}.root_job_ulid AND s.state = 'succeeded')))"""  # noqa: S608 our own text

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
    SELECT j.id, j.job_ulid, j.root_job_ulid, j.batch_id, j.org_slug, j.finished_at
      FROM named n JOIN runtime_jobs j ON j.root_job_ulid = n.root_job_ulid
     UNION
    SELECT j.id, j.job_ulid, j.root_job_ulid, j.batch_id, j.org_slug, j.finished_at
      FROM named n JOIN runtime_jobs j ON j.batch_id = n.batch_id)
SELECT array_agg(m.job_ulid), max(m.batch_id) FROM member m LEFT JOIN workflow_runs r ON r.batch_id = m.batch_id
 GROUP BY {UNIT.format("m")}
HAVING bool_and(m.id = ANY (%(locked)s) AND r.pinned IS NOT TRUE AND NOT {KEEPS.format("m")}
       AND coalesce(m.finished_at < CASE WHEN r.id IS NULL THEN %(before)s::timestamptz
                                         ELSE %(runs_before)s::timestamptz END, false)
       AND NOT EXISTS (SELECT FROM runtime_job_dependencies d JOIN runtime_jobs waiting USING (job_ulid)
                        WHERE d.on_job_ulid = m.job_ulid AND {UNIT.format("waiting")} <> {UNIT.format("m")}))"""  # noqa: S608 our own text
_OF_JOBS = "job_ulid = ANY (%(jobs)s)"
# In the order of their foreign keys. Events are deleted by `delete_events`.
_DEPENDENT_ROWS = (
    ("runtime_job_dependencies", "job_ulid = ANY (%(jobs)s) OR on_job_ulid = ANY (%(jobs)s)"),
    ("runtime_job_log_chunks", _OF_JOBS),
    ("runtime_unsent_runs", _OF_JOBS),
    ("runtime_job_artifacts", _OF_JOBS),
    ("runtime_failure_explanations", _OF_JOBS),
    ("runtime_worker_leases", _OF_JOBS),
    ("step_annotations", _OF_JOBS),
    ("step_log_waiting_chunks", f"step_log_id IN (SELECT id FROM step_logs WHERE {_OF_JOBS})"),  # noqa: S608
    ("step_logs", _OF_JOBS),
    ("runtime_job_steps", _OF_JOBS),
    ("runtime_mask_snapshots", _OF_JOBS),
    ("actions_token_chains", f"job_id IN (SELECT id FROM runtime_jobs WHERE {_OF_JOBS})"),  # noqa: S608
    ("job_replays", _OF_JOBS),
    ("runtime_jobs", _OF_JOBS),
    ("workflow_runs", "batch_id = ANY (%(batches)s)"),
    ("runtime_batches", "id = ANY (%(batches)s)"),
)


_MARK_CHECKPOINTS = "UPDATE evidence_checkpoint_jobs SET deleted_at = %s WHERE job_ulid = ANY (%s)"
_UNLINK_RERUNS = """
UPDATE workflow_runs SET parent_id = NULL
 WHERE parent_id IN (SELECT id FROM workflow_runs WHERE batch_id = ANY (%(batches)s))"""
# A log that is just moved into an object names that object after its lock. All operations lock steps before logs.
_LOCK_STEPS_AND_LOGS = tuple(
    f"SELECT FROM {table} WHERE {_OF_JOBS} FOR UPDATE" for table in ("runtime_job_steps", "step_logs")
)
_DISCARD_LOG_OBJECTS = f"""
INSERT INTO discarded_log_objects (name)
SELECT object_key FROM step_logs WHERE {_OF_JOBS} AND object_key <> '' ON CONFLICT (name) DO NOTHING"""  # noqa: S608

_LOG_TABLES = ("step_annotations", "step_log_waiting_chunks", "step_logs", "runtime_job_log_chunks")
_OF_LOGS = {table: rows for table, rows in _DEPENDENT_ROWS if table in _LOG_TABLES}
_LOCK_FOR_LOG = f"""
SELECT FROM runtime_jobs j WHERE {_OF_JOBS} AND finished_at < %(before)s AND j.org_slug NOT IN ({KEPT_ORGANIZATIONS})
   AND NOT EXISTS (SELECT FROM workflow_runs r WHERE r.batch_id = j.batch_id) FOR UPDATE SKIP LOCKED"""  # noqa: S608


@operation
def delete_finished_jobs(
    _: UnitOfWork,
    *,
    job_ids: Sequence[int],
    finished_before: datetime | None,
    runs_finished_before: datetime | None = None,
) -> Counter[str]:
    """Delete the units of these jobs, as far as they may be deleted.

    Args:
        job_ids: Keys of jobs.
        finished_before: All jobs of a unit must have ended before this time. None: such units are kept.
        runs_finished_before: The same for the jobs of workflow runs.

    Returns:
        The number of deleted rows by table.
    """
    deleted: Counter[str] = Counter()
    with connection.cursor() as cursor:
        cursor.execute(_MEMBERS, [list(job_ids)])
        cursor.execute(_LOCK, [[row[0] for row in cursor.fetchall()]])
        locked = [row[0] for row in cursor.fetchall()]
        cutoffs = {"before": finished_before, "runs_before": runs_finished_before}
        cursor.execute(_DELETABLE, {"locked": locked, **cutoffs})
        units = cursor.fetchall()
        jobs = [job_ulid for members, _ in units for job_ulid in members]
        if not jobs:
            return deleted
        deleted["runtime_job_events"] = delete_events(jobs)
        # What checkpoints say about them remains, so that the other jobs of the same checkpoint can be verified.
        cursor.execute(_MARK_CHECKPOINTS, [database_now(), jobs])
        values = {"jobs": jobs, "batches": [batch for _, batch in units if batch is not None]}
        # Housekeeping deletes the objects first, and then these rows.
        StoredArtifact.objects.filter(job_id__in=jobs, is_abandoned=False).update(is_abandoned=True)
        _discard_log_objects(cursor, values)
        cursor.execute(_UNLINK_RERUNS, values)
        for table, rows in _DEPENDENT_ROWS:
            cursor.execute(f"DELETE FROM {table} WHERE {rows}", values)  # noqa: S608 our own names
            deleted[table] = cursor.rowcount
    return deleted


@operation
def delete_log(_: UnitOfWork, *, job_ulid: str, finished_before: datetime) -> Counter[str]:
    """Delete the log of a job that ended before this time. The log of a workflow run stays as long as the run.

    Args:
        job_ulid: The job.
        finished_before: The job must have ended before this time.

    Returns:
        The number of deleted rows by table.
    """
    deleted: Counter[str] = Counter()
    values: dict[str, Any] = {"jobs": [job_ulid], "before": finished_before}
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_FOR_LOG, values)
        if cursor.fetchone() is None:
            return deleted
        _discard_log_objects(cursor, values)
        for table in _LOG_TABLES:
            cursor.execute(f"DELETE FROM {table} WHERE {_OF_LOGS[table]}", values)  # noqa: S608 our own names
            deleted[table] = cursor.rowcount
    return deleted


@operation
def delete_step_chunks(_: UnitOfWork, *, log_id: int, closed_before: datetime) -> int:
    """Delete the chunks of a workflow step that no object has, although the step ended before this time.

    The storage of logs has refused the object for all that time (contract 4.8). What an object has stays.

    Args:
        log_id: The key of the log.
        closed_before: The step must have ended before this time.

    Returns:
        The number of deleted chunks.
    """
    kept = IncidentMode.objects.filter(until__gt=database_now()).values("org_slug")
    rows = StepLog.objects.select_for_update(skip_locked=True, of=("self",)).exclude(job__org_slug__in=kept)
    log = rows.filter(pk=log_id, needs_finalizing=True, closed_at__lt=closed_before).first()
    if log is None:
        return 0
    deleted, _by_model = LogChunk.objects.filter(job_id=log.job_id, step=log.step).delete()
    log.waiting.all().delete()
    StepLog.objects.filter(pk=log_id).update(
        stored_bytes=log.object_bytes,
        held=None,
        held_masked=0,
        waiting_bytes=0,
        waiting_count=0,
        needs_finalizing=False,
        is_truncated=True,
    )
    return deleted


def _discard_log_objects(cursor: Any, values: dict[str, Any]) -> None:
    """Lock the steps and logs of jobs, and let housekeeping delete their objects."""
    for lock in _LOCK_STEPS_AND_LOGS:
        cursor.execute(lock, values)
    cursor.execute(_DISCARD_LOG_OBJECTS, values)
