"""Pruners: each deletes the old rows of one kind, some in a step.

Every step is one short transaction with a bounded number of rows. Claims are not disturbed: a step locks rows of jobs
that have ended only, skips those that are locked, and touches no lane.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DatabaseError, OperationalError, connection

from orchestrator.core.counters import count as count_metric
from orchestrator.core.counters import runs_pruned
from orchestrator.evidence.operator_chains import delete_operator_events
from orchestrator.incidents.incident_mode import KEPT_ORGANIZATIONS
from orchestrator.incidents.models import IncidentMode
from orchestrator.services import pruning
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.db_time import database_now

log = logging.getLogger(__name__)

ROWS = 1000  # of a simple table in one transaction
JOBS = 100  # read in one transaction
LOG_CHUNKS = 500  # read in one step; each log is deleted in a transaction of its own
SLOW_SECONDS = 1.0  # a step that takes longer is followed by one with half as many rows
RUNS = "workflow_runs"  # the setting of workflow runs, and their table
RESTART_SECONDS = 86_400.0  # between two passes over stored logs that begin with the oldest one
MAX_SKIPPED = 10  # consecutive rows: if so many fail, the rows are not the cause


# A log of a workflow run has no subject. A job is older than its log; the deletion compares the end of the job.
_STORED_LOGS = """
SELECT l.id, CASE WHEN r.id IS NULL THEN l.job_ulid END, j.created_at
  FROM step_logs l JOIN runtime_jobs j USING (job_ulid) LEFT JOIN workflow_runs r USING (batch_id)
 WHERE l.id > %(after)s ORDER BY l.id LIMIT %(rows)s"""
# With the partial index of logs that need an object: usually very few.
_UNSTORED_STEP_LOGS = f"""
SELECT l.id FROM step_logs l JOIN runtime_job_steps s ON s.job_ulid = l.job_ulid AND s.index = l.step
  JOIN runtime_jobs j ON j.job_ulid = l.job_ulid
 WHERE l.needs_finalizing AND l.closed_at < %(before)s AND j.org_slug NOT IN ({KEPT_ORGANIZATIONS})
 ORDER BY l.id LIMIT %(rows)s"""  # noqa: S608 our own text


# A delivery that was requested again lately stays, with the tries of that round.
_NOT_TRIED = "due_at IS NULL AND NOT EXISTS (SELECT FROM delivery_tries t WHERE t.delivery_id = deliveries.id)"
_NOT_TRIED_LATELY = _NOT_TRIED.removesuffix(")") + " AND t.started_at >= %(before)s)"
_WITHOUT_TARGETS = "NOT EXISTS (SELECT FROM bulk_targets t WHERE t.bulk_action_id = bulk_actions.id)"
_DELETED = "status = 'deleted' AND NOT EXISTS (SELECT FROM deliveries d WHERE d.webhook_id = webhooks.id)"


def cutoff_of(setting: str, now: datetime) -> datetime | None:
    """Return the time before which rows of a kind are old, or None where all are kept."""
    days = settings.RETENTION_DAYS[setting]
    return now - timedelta(days=days) if days else None


class StepSize:
    """The number of rows of the next step: half as many after a slow step, twice as many after a quick one."""

    def __init__(self, limit: int) -> None:
        self.rows = self._limit = limit

    def halve(self) -> None:
        """Set the size of a step after one that was too much for the time of a statement."""
        self.rows = max(1, self.rows // 2)

    def adapt(self, seconds: float) -> None:
        """Set the size of a step after one that took so long."""
        if seconds > SLOW_SECONDS:
            self.halve()
        else:
            self.rows = min(self._limit, self.rows * 2)


class Pruner:
    """Deletes rows of one kind. `step` deletes some, and returns whether there may be more."""

    def __init__(self, setting: str) -> None:
        self.setting = setting
        self.idle_until = 0.0
        self.skipped: list[Exception] = []  # the errors of rows that were skipped; the caller takes them
        self._found = False  # something was deleted in this pass

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self.setting}"

    def cutoff(self, now: datetime) -> datetime | None:
        """Return the time before which rows are old, or None where all are kept."""
        return cutoff_of(self.setting, now)

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        """Delete some rows. Returns the deleted rows by table, and whether there may be more."""
        raise NotImplementedError


class TablePruner(Pruner):
    """Deletes rows of a table that nothing refers to, by one column with their time.

    `also` is a further condition. `also_counted` replaces it where rows are counted that a deletion would delete after
    the rows that refer to them.
    """

    def __init__(
        self,
        setting: str,
        table: str,
        key: str,
        column: str,
        *,
        by_key: bool = False,
        of_tenants: bool = False,
        also: str = "true",
        also_counted: str | None = None,
    ) -> None:
        super().__init__(setting)
        self.table = table
        self._size = StepSize(ROWS)
        # Rows of an organization in incident mode stay.
        kept = f"coalesce(org_slug, '') NOT IN ({KEPT_ORGANIZATIONS})" if of_tenants else "true"
        # By the key where the column has no index: keys rise with the time, so the first ones are the oldest.
        oldest = f"(SELECT * FROM {table} WHERE {kept} ORDER BY {key} LIMIT %(rows)s) oldest" if by_key else table  # noqa: S608
        # A locked row may just be renewed. After a wait for it, the DELETE would not check its time again. Rows of
        # tables that are read by the key are never updated.
        lock = "" if by_key else "FOR UPDATE SKIP LOCKED"
        # An array, because PostgreSQL may execute a subquery of IN once for each row: then there is no limit.
        self._delete = f"""DELETE FROM {table} WHERE {key} = ANY (ARRAY(
            SELECT {key} FROM {oldest} WHERE {column} < %(before)s AND {kept} AND {also}
             ORDER BY {column} LIMIT %(rows)s {lock}))"""  # noqa: S608
        counted = also_counted or also
        self._count = f"SELECT count(*) FROM {table} WHERE {column} < %(before)s AND {kept} AND {counted}"  # noqa: S608

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self.table}"

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        limit, began = self._size.rows, time.monotonic()
        try:
            deleted = self.delete(before, limit)
        except OperationalError as error:
            if is_connection_lost(error) or limit == 1:
                raise
            self._size.halve()
            return Counter(), True
        self._size.adapt(time.monotonic() - began)
        return Counter({self.table: deleted} if deleted else {}), self.may_have_more(deleted, limit)

    def delete(self, before: datetime, limit: int) -> int:
        """Delete at most so many old rows, and return how many."""
        with connection.cursor() as cursor:
            cursor.execute(self._delete, {"before": before, "rows": limit})
            return cursor.rowcount

    def may_have_more(self, deleted: int, limit: int) -> bool:
        """Return whether old rows may be left after a step that has deleted so many."""
        return deleted == limit

    def count(self, before: datetime) -> int:
        """Return how many rows are old."""
        with connection.cursor() as cursor:
            cursor.execute(self._count, {"before": before})
            return int(cursor.fetchone()[0])


class ExpiredPruner(TablePruner):
    """Deletes rows whose own end has passed. There is no setting, because such rows have no use."""

    def cutoff(self, now: datetime) -> datetime | None:
        return now


class OperatorEventPruner(TablePruner):
    """Deletes audit log entries of operators, which an append-only trigger protects from every other DELETE."""

    def __init__(self) -> None:
        super().__init__("operator_events", "operator_events", "id", "created_at", of_tenants=True)

    def delete(self, before: datetime, limit: int) -> int:
        kept = IncidentMode.objects.filter(until__gt=database_now()).values_list("org_slug", flat=True)
        return delete_operator_events(created_before=before, limit=limit, except_of=list(kept))

    def may_have_more(self, deleted: int, limit: int) -> bool:  # noqa: ARG002 as of every table
        return deleted > 0  # one chain at a time


class BulkTargetPruner(TablePruner):
    """Deletes the targets of bulk actions that have ended. The actions follow when they have no target any more."""

    def __init__(self) -> None:
        super().__init__("bulk_actions", "bulk_targets", "id", "finished_at")
        old = "bulk_actions a JOIN bulk_targets t ON t.bulk_action_id = a.id WHERE a.finished_at < %(before)s"
        self._delete = f"DELETE FROM bulk_targets WHERE id IN (SELECT t.id FROM {old} LIMIT %(rows)s)"  # noqa: S608
        self._count = f"SELECT count(*) FROM {old}"  # noqa: S608


class WindowPruner(Pruner):
    """Walks through a table in the order of its keys, window by window, from the oldest row to the first young one.

    A row whose deletion fails alone is skipped until the next pass, so that the rows behind it are deleted.
    """

    def __init__(self, setting: str, window: str, size: int) -> None:
        super().__init__(setting)
        self._window = window  # SQL: key, subject and time of the next rows after a key
        self._size = StepSize(size)
        self._after = 0
        self._skipped = 0  # since a deletion succeeded
        self._pass_has_ended = False  # by the last step

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        with connection.cursor() as cursor:
            cursor.execute(self._window, {"after": self._after, "rows": self._size.rows})
            rows = cursor.fetchall()
        old = [row for row in rows if row[2] < before]
        self._pass_has_ended = False
        began = time.monotonic()
        try:
            deleted = self.delete([row[1] for row in old], before) if old else Counter()
        except DatabaseError as error:
            if is_connection_lost(error):
                raise
            if len(old) > 1:
                self._size.halve()
                return Counter(), True
            self._after = old[0][0]
            self._skipped += 1
            if self._skipped % MAX_SKIPPED == 0:
                raise
            log.exception("%s skips row %d, whose deletion failed, until the next pass", self, self._after)
            self.skipped.append(error)
            return Counter(), True
        self._size.adapt(time.monotonic() - began)
        self._skipped = 0
        self._found = self._found or any(deleted.values())
        if old:
            self._after = rows[-1][0]
            return deleted, True
        # The end of a pass. Rows that a younger row needed may be free now.
        again, self._found, self._after, self._pass_has_ended = self._found, False, 0, True
        return deleted, again

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:
        """Delete what belongs to these subjects, and return the deleted rows by table."""
        raise NotImplementedError


class JobPruner(WindowPruner):
    """Deletes jobs that have ended, with all that belongs to them. Those of workflow runs have their own period."""

    def __init__(self) -> None:
        window = "SELECT id, id, created_at FROM runtime_jobs WHERE id > %(after)s ORDER BY id LIMIT %(rows)s"
        super().__init__("jobs", window, JOBS)
        self._jobs_before: datetime | None = None
        self._runs_before: datetime | None = None

    def cutoff(self, now: datetime) -> datetime | None:
        """Return the later one of both cutoffs. The deletion of a unit applies its own."""
        self._jobs_before, self._runs_before = super().cutoff(now), cutoff_of(RUNS, now)
        return max(filter(None, (self._jobs_before, self._runs_before)), default=None)

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:  # noqa: ARG002 see `cutoff`
        deleted = pruning.delete_finished_jobs(
            job_ids=subjects, finished_before=self._jobs_before, runs_finished_before=self._runs_before
        )
        if deleted["workflow_runs"]:
            count_metric([runs_pruned("runs")], deleted["workflow_runs"])
        return deleted


class LogPruner(WindowPruner):
    """Deletes chunks of logs of jobs that have ended; the jobs stay."""

    def __init__(self) -> None:
        columns = "id, job_ulid, created_at"
        window = f"SELECT {columns} FROM runtime_job_log_chunks WHERE id > %(after)s ORDER BY id LIMIT %(rows)s"  # noqa: S608
        super().__init__("logs", window, LOG_CHUNKS)

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:
        return _delete_logs(subjects, before)


class StoredLogPruner(WindowPruner):
    """Deletes logs that are stored as objects; the jobs stay. Logs of workflow runs stay as long as the runs.

    Those logs are many, so a pass begins where the last one ended. Once a day it begins with the oldest log.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__("logs", _STORED_LOGS, LOG_CHUNKS)
        self._monotonic = monotonic
        self._restart_at = monotonic() + RESTART_SECONDS

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        position = self._after
        deleted, has_more = super().step(before)
        if self._pass_has_ended and self._monotonic() < self._restart_at:
            self._after = position  # the pass has reached the first young log
            return deleted, False
        if self._pass_has_ended:
            self._restart_at = self._monotonic() + RESTART_SECONDS
        return deleted, has_more

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:
        return _delete_logs([job_ulid for job_ulid in subjects if job_ulid is not None], before)


def _delete_logs(job_ulids: Sequence[str], before: datetime) -> Counter[str]:
    deleted: Counter[str] = Counter()
    for job_ulid in dict.fromkeys(job_ulids):
        deleted.update(pruning.delete_log(job_ulid=job_ulid, finished_before=before))
    return deleted


class StepChunkPruner(Pruner):
    """Deletes chunks of workflow steps that could not be stored as objects."""

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        with connection.cursor() as cursor:
            cursor.execute(_UNSTORED_STEP_LOGS, {"before": before, "rows": JOBS})
            keys = [row[0] for row in cursor.fetchall()]
        chunks = sum(pruning.delete_step_chunks(log_id=key, closed_before=before) for key in keys)
        if chunks:
            count_metric([runs_pruned("chunks")], chunks)
        return Counter({"runtime_job_log_chunks": chunks}), len(keys) == JOBS


def pruners() -> tuple[Pruner, ...]:
    """Return a pruner for each kind of rows that grows. What is small for each transaction comes first."""
    return (
        TablePruner("idempotency_keys", "idempotency_keys", "id", "created_at"),
        TablePruner("webhook_deliveries", "webhook_deliveries", "id", "received_at"),
        TablePruner("deliveries", "delivery_tries", "id", "started_at"),
        TablePruner("deliveries", "deliveries", "id", "created_at", also=_NOT_TRIED, also_counted=_NOT_TRIED_LATELY),
        TablePruner("deliveries", "webhooks", "id", "updated_at", also=_DELETED),
        TablePruner("workflow_triggers", "workflow_triggers", "id", "received_at"),
        TablePruner("rejected_workflows", "rejected_workflows", "id", "created_at"),
        TablePruner("schedule_ticks", "schedule_ticks", "id", "created_at"),
        BulkTargetPruner(),
        TablePruner("bulk_actions", "bulk_actions", "id", "finished_at", also=_WITHOUT_TARGETS, also_counted="true"),
        TablePruner("incidents", "incidents", "id", "resolved_at", of_tenants=True),
        ExpiredPruner("sessions", "django_session", "session_key", "expire_date"),
        ExpiredPruner("throttle_windows", "throttle_windows", "key", "expires_at"),
        ExpiredPruner("runner_channels", "runner_channels", "process", "expires_at"),
        TablePruner("admin_log", "django_admin_log", "id", "action_time", by_key=True),
        OperatorEventPruner(),
        StepChunkPruner("step_chunks"),
        LogPruner(),
        StoredLogPruner(),
        TablePruner("runs", "ingest_runs", "id", "received_at", by_key=True, of_tenants=True),
        JobPruner(),
    )
