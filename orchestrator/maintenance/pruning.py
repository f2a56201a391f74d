"""Deletes what is older than the retention settings: steadily by the scheduler, at once by `manage.py prune`.

Every step is one short transaction with a bounded number of rows. Claims are not disturbed: a step locks rows of jobs
that have ended only, skips those that are locked, and touches no lane.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import OperationalError, connection, transaction

from orchestrator import services
from orchestrator.artifacts.tasks import count_due_objects, delete_due_objects
from orchestrator.counters import count as count_metric
from orchestrator.counters import runs_pruned
from orchestrator.job_tokens.partitions import RETENTION_DAYS as TOKEN_DAYS
from orchestrator.job_tokens.partitions import drop_expired_partitions, expired_tokens
from orchestrator.models import IncidentMode
from orchestrator.services.incident_mode import KEPT_ORGANIZATIONS
from orchestrator.services.pruning import KEEPS, UNIT
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.db_time import database_now
from runtime_jobs.events import delete_operator_events

ROWS = 1000  # of a simple table in one transaction
JOBS = 100  # looked at in one transaction
LOG_CHUNKS = 500  # looked at in one step; each log is deleted in a transaction of its own
SECONDS_A_ROUND = 0.5
SLOW_SECONDS = 1.0  # a step that takes longer is followed by one with half as many rows
OBJECTS, USED_TOKENS = "stored objects", "actions_used_tokens"
RUNS = "workflow_runs"  # the setting of workflow runs, and their table
RESTART_SECONDS = 86_400.0  # between two passes over stored logs that begin with the oldest one
IDLE_SECONDS = 600.0  # until the next check whether rows have become old enough


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
_DELETED = "status = 'deleted' AND NOT EXISTS (SELECT FROM deliveries d WHERE d.webhook_id = webhooks.id)"


def cutoff_of(setting: str, now: datetime) -> datetime | None:
    """Return the time before which rows of a kind are old, or None where all are kept."""
    days = settings.RETENTION_DAYS[setting]
    return now - timedelta(days=days) if days else None


class Pruner:
    """One kind of rows. `step` deletes some and says whether the pass is over."""

    def __init__(self, setting: str) -> None:
        self.setting = setting
        self.idle_until = 0.0
        self._found = False  # something was deleted in this pass

    def cutoff(self, now: datetime) -> datetime | None:
        """Return the time before which rows are old, or None where all are kept."""
        return cutoff_of(self.setting, now)

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        """Delete some rows. Returns the deleted rows by table, and whether there may be more."""
        raise NotImplementedError


class TablePruner(Pruner):
    """Rows of a table that nothing refers to, by one column with their time.

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
        # Rows of an organization in incident mode stay.
        kept = f"coalesce(org_slug, '') NOT IN ({KEPT_ORGANIZATIONS})" if of_tenants else "true"
        # By the key where the column has no index: keys rise with the time, so the first ones are the oldest.
        oldest = f"(SELECT * FROM {table} WHERE {kept} ORDER BY {key} LIMIT %(rows)s) oldest" if by_key else table  # noqa: S608
        # A locked row may just be renewed. After a wait for it, the DELETE would not check its time again. Rows of
        # tables that are read by the key are never updated.
        lock = "" if by_key else "FOR UPDATE SKIP LOCKED"
        self._delete = f"""DELETE FROM {table} WHERE {key} IN (
            SELECT {key} FROM {oldest} WHERE {column} < %(before)s AND {kept} AND {also}
             ORDER BY {column} LIMIT %(rows)s {lock})"""  # noqa: S608
        counted = also_counted or also
        self._count = f"SELECT count(*) FROM {table} WHERE {column} < %(before)s AND {kept} AND {counted}"  # noqa: S608

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        with connection.cursor() as cursor:
            cursor.execute(self._delete, {"before": before, "rows": ROWS})
            return Counter({self.table: cursor.rowcount}), cursor.rowcount == ROWS

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

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        kept = IncidentMode.objects.filter(until__gt=database_now()).values_list("org_slug", flat=True)
        deleted = delete_operator_events(created_before=before, limit=ROWS, except_of=list(kept))
        return Counter({self.table: deleted}), deleted == ROWS


class WindowPruner(Pruner):
    """Walks through a table in the order of its keys, window by window, from the oldest row to the first young one."""

    def __init__(self, setting: str, window: str, size: int) -> None:
        super().__init__(setting)
        self._window = window  # SQL: key, subject and time of the next rows after a key
        self._size = self._full_size = size
        self._after = 0

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        with connection.cursor() as cursor:
            cursor.execute(self._window, {"after": self._after, "rows": self._size})
            rows = cursor.fetchall()
        old = [row for row in rows if row[2] < before]
        began = time.monotonic()
        try:
            deleted = self.delete([row[1] for row in old], before) if old else Counter()
        except OperationalError as error:
            if is_connection_lost(error) or self._size == 1:
                raise
            self._size = max(1, self._size // 2)  # too much for one statement's time: try with less
            return Counter(), True
        slow = time.monotonic() - began > SLOW_SECONDS
        self._size = max(1, self._size // 2) if slow else min(self._full_size, self._size * 2)
        self._found = self._found or any(deleted.values())
        if old:
            self._after = rows[-1][0]
            return deleted, True
        # The end of a pass. Rows that a younger row needed may be free now.
        again, self._found, self._after = self._found, False, 0
        return deleted, again

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:
        raise NotImplementedError


class JobPruner(WindowPruner):
    """Jobs that have ended, with all that belongs to them. Those of workflow runs have a period of their own."""

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
        deleted = services.delete_finished_jobs(
            job_ids=subjects, finished_before=self._jobs_before, runs_finished_before=self._runs_before
        )
        if deleted["workflow_runs"]:
            count_metric([runs_pruned("runs")], deleted["workflow_runs"])
        return deleted


class LogPruner(WindowPruner):
    """Chunks of logs of jobs that have ended; the jobs stay."""

    def __init__(self) -> None:
        columns = "id, job_ulid, created_at"
        window = f"SELECT {columns} FROM runtime_job_log_chunks WHERE id > %(after)s ORDER BY id LIMIT %(rows)s"  # noqa: S608
        super().__init__("logs", window, LOG_CHUNKS)

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:
        return _delete_logs(subjects, before)


class StoredLogPruner(WindowPruner):
    """Logs that are stored as objects; the jobs stay. Logs of workflow runs stay as long as the runs.

    Those logs are many, so a pass begins where the last one ended. Once a day it begins with the oldest log.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__("logs", _STORED_LOGS, LOG_CHUNKS)
        self._monotonic = monotonic
        self._restart_at = monotonic() + RESTART_SECONDS

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        position = self._after
        deleted, has_more = super().step(before)
        if self._after == 0 and self._monotonic() < self._restart_at:
            self._after = position  # the pass has reached the first young log
            return deleted, False
        if self._after == 0:
            self._restart_at = self._monotonic() + RESTART_SECONDS
        return deleted, has_more

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:
        return _delete_logs([job_ulid for job_ulid in subjects if job_ulid is not None], before)


def _delete_logs(job_ulids: Sequence[str], before: datetime) -> Counter[str]:
    deleted: Counter[str] = Counter()
    for job_ulid in dict.fromkeys(job_ulids):
        deleted.update(services.delete_log(job_ulid=job_ulid, finished_before=before))
    return deleted


class StepChunkPruner(Pruner):
    """Chunks of workflow steps that could not be stored as objects."""

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        with connection.cursor() as cursor:
            cursor.execute(_UNSTORED_STEP_LOGS, {"before": before, "rows": JOBS})
            keys = [row[0] for row in cursor.fetchall()]
        chunks = sum(services.delete_step_chunks(log_id=key, closed_before=before) for key in keys)
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
        TablePruner("incidents", "incidents", "id", "resolved_at", of_tenants=True),
        ExpiredPruner("sessions", "django_session", "session_key", "expire_date"),
        ExpiredPruner("login_attempts", "login_attempts", "key", "window_ends_at"),
        ExpiredPruner("request_windows", "request_windows", "key", "expires_at"),
        ExpiredPruner("runner_channels", "runner_channels", "process", "expires_at"),
        TablePruner("admin_log", "django_admin_log", "id", "action_time", by_key=True),
        OperatorEventPruner(),
        StepChunkPruner("step_chunks"),
        LogPruner(),
        StoredLogPruner(),
        TablePruner("runs", "ingest_runs", "id", "received_at", by_key=True, of_tenants=True),
        JobPruner(),
    )


class PruningTask:
    """Runs the pruners in turn: `delete_some` for a part of a scheduler's round, `delete_all` until nothing is left."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pruners = pruners()
        self._monotonic = monotonic

    def delete_some(
        self, *, seconds: float = SECONDS_A_ROUND, now: datetime | None = None, report: Callable[[str, int], None]
    ) -> None:
        """Delete old rows, step by step, until the time is up or nothing is left.

        Args:
            seconds: No new step begins after that.
            now: What "old" is measured from; the database's time by default.
            report: Called after each step with a table and the number of its deleted rows.
        """
        until, now = self._monotonic() + seconds, now or database_now()
        due = [pruner for pruner in self._pruners if pruner.idle_until <= self._monotonic()]
        while due and self._monotonic() < until:
            for pruner in list(due):
                before = pruner.cutoff(now)
                deleted, may_have_more = pruner.step(before) if before else (Counter[str](), False)
                for table, rows in deleted.items():
                    report(table, rows)
                if not may_have_more:
                    pruner.idle_until = self._monotonic() + IDLE_SECONDS
                    due.remove(pruner)

    def delete_all(self, *, now: datetime | None = None) -> Counter[str]:
        """Delete all old rows. Returns how many, by table."""
        deleted: Counter[str] = Counter()

        def report(table: str, rows: int) -> None:
            deleted[table] += rows

        self.delete_some(seconds=float("inf"), now=now, report=report)
        return deleted


def delete_everything(*, now: datetime | None = None) -> Counter[str]:
    """Delete all that is old, with its objects, and return the numbers by table.

    Housekeeping deletes objects, and days of used tokens, a little at a time. Objects of logs remain for two hours, so
    that a reader can complete its response; housekeeping deletes them then.

    Args:
        now: The present; by default the time of the database.
    """
    now = now or database_now()
    deleted = PruningTask().delete_all(now=now)
    deleted[OBJECTS] = delete_due_objects(now)
    deleted[USED_TOKENS] = sum(drop_expired_partitions(now).values())
    return deleted


_OLD_JOBS = f"""
WITH RECURSIVE j AS MATERIALIZED (
    SELECT t.id, t.job_ulid, t.root_job_ulid, t.batch_id, t.org_slug, t.finished_at, {UNIT.format("t")} AS unit,
           CASE WHEN r.id IS NULL THEN %(before)s ELSE %(runs_before)s END AS before, r.pinned IS TRUE AS is_pinned
      FROM runtime_jobs t LEFT JOIN workflow_runs r ON r.batch_id = t.batch_id
), edge AS (
    SELECT DISTINCT waiting.unit AS waiting, needed.unit AS needed
      FROM runtime_job_dependencies d
      JOIN j waiting USING (job_ulid) JOIN j needed ON needed.job_ulid = d.on_job_ulid
     WHERE waiting.unit <> needed.unit
), kept AS (
    SELECT unit FROM j WHERE finished_at IS NULL OR finished_at >= before OR is_pinned OR {KEEPS.format("j")}
     UNION
    SELECT edge.needed FROM edge JOIN kept ON kept.unit = edge.waiting
), old AS MATERIALIZED (SELECT id, job_ulid, batch_id FROM j WHERE unit NOT IN (SELECT unit FROM kept))
"""  # noqa: S608 our own text
_OF_OLD_JOBS = {
    "runtime_jobs": "old",
    "runtime_batches": "(SELECT DISTINCT batch_id FROM old WHERE batch_id IS NOT NULL) b",
    "runtime_job_dependencies": "runtime_job_dependencies JOIN old USING (job_ulid)",
    **{
        table: f"{table} JOIN old USING (job_ulid)"
        for table in ("runtime_job_events", "runtime_unsent_runs", "runtime_job_artifacts")
    },
    **{
        table: f"{table} JOIN old USING (job_ulid)"
        for table in ("runtime_failure_explanations", "runtime_worker_leases")
    },
    **{
        table: f"{table} JOIN old USING (job_ulid)"
        for table in ("runtime_job_steps", "runtime_mask_snapshots", "job_replays")
    },
    "actions_token_chains": "actions_token_chains c JOIN old ON old.id = c.job_id",
    "workflow_runs": "workflow_runs r JOIN (SELECT DISTINCT batch_id FROM old) b USING (batch_id)",
}
# Logs are deleted with their jobs, or earlier.
_OF_OLD_LOGS = {
    table: f"""{rows} WHERE l.job_ulid IN (SELECT job_ulid FROM old) OR l.job_ulid IN (
        SELECT job_ulid FROM j WHERE finished_at < %(logs)s AND j.org_slug NOT IN ({KEPT_ORGANIZATIONS})
           AND NOT EXISTS (SELECT FROM workflow_runs r WHERE r.batch_id = j.batch_id))"""  # noqa: S608 our own text
    for table, rows in {
        "step_annotations": "step_annotations l",
        "step_log_waiting_chunks": "step_log_waiting_chunks w JOIN step_logs l ON l.id = w.step_log_id",
        "step_logs": "step_logs l",
        "runtime_job_log_chunks": "runtime_job_log_chunks l",
    }.items()
}
_OLD_STEP_CHUNKS = f"""
SELECT count(*) FROM runtime_job_log_chunks c JOIN step_logs l USING (job_ulid, step)
  JOIN runtime_job_steps s ON s.job_ulid = l.job_ulid AND s.index = l.step
 WHERE l.needs_finalizing AND l.closed_at < %(chunks)s AND c.job_ulid NOT IN (SELECT job_ulid FROM old)
   AND c.job_ulid IN (SELECT job_ulid FROM j WHERE j.org_slug NOT IN ({KEPT_ORGANIZATIONS}))"""  # noqa: S608


def count_everything(*, now: datetime | None = None) -> dict[str, int]:
    """Count what `delete_everything` would delete, by table. Artifacts of old jobs are not counted."""
    now = now or database_now()
    return count_old_rows(now=now) | {OBJECTS: count_due_objects(now), USED_TOKENS: sum(expired_tokens(now).values())}


def count_old_rows(*, now: datetime | None = None) -> dict[str, int]:
    """Count what `delete_all` would delete, by table. Reads all jobs; changes nothing."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        return dict(_counts(now or database_now()))


def _counts(now: datetime) -> Iterator[tuple[str, int]]:
    cutoffs = {pruner.setting: pruner.cutoff(now) for pruner in pruners()}
    for pruner in pruners():
        before = cutoffs[pruner.setting]
        if isinstance(pruner, TablePruner) and before is not None:
            yield pruner.table, pruner.count(before)
    never = datetime.min.replace(tzinfo=now.tzinfo)
    periods = {"before": "jobs", "runs_before": RUNS, "logs": "logs", "chunks": "step_chunks"}
    values = {name: cutoff_of(setting, now) or never for name, setting in periods.items()}
    tables = _OF_OLD_JOBS | _OF_OLD_LOGS
    columns = [f"(SELECT count(*) FROM {rows})" for rows in tables.values()]  # noqa: S608 our own names
    with connection.cursor() as cursor:
        cursor.execute(f"{_OLD_JOBS} SELECT {', '.join(columns)}, ({_OLD_STEP_CHUNKS})", values)
        *numbers, step_chunks = cursor.fetchone()
    found = dict(zip(tables, numbers, strict=True))
    found["runtime_job_log_chunks"] += step_chunks
    yield from found.items()


@dataclass(frozen=True)
class Period:
    """Describes how long the rows of a table are kept, for the output of `manage.py prune`."""

    table: str
    setting: str

    def __str__(self) -> str:
        if self.table == USED_TOKENS:
            return f"expiry + {TOKEN_DAYS} days"
        if self.setting not in settings.RETENTION_DAYS:
            return "until they expire"
        days = settings.RETENTION_DAYS[self.setting]
        return f"{days} days" if days else "for ever"


PERIODS = (
    *(Period(table, RUNS if table == RUNS else "jobs") for table in _OF_OLD_JOBS),
    *(Period(table, "logs") for table in _OF_OLD_LOGS),
    Period("ingest_runs", "runs"),
    Period("idempotency_keys", "idempotency_keys"),
    Period("webhook_deliveries", "webhook_deliveries"),
    Period("delivery_tries", "deliveries"),
    Period("deliveries", "deliveries"),
    Period("webhooks", "deliveries"),
    Period("workflow_triggers", "workflow_triggers"),
    Period("rejected_workflows", "rejected_workflows"),
    Period("incidents", "incidents"),
    Period("django_session", "sessions"),
    Period("login_attempts", "login_attempts"),
    Period("request_windows", "request_windows"),
    Period("runner_channels", "runner_channels"),
    Period("django_admin_log", "admin_log"),
    Period("operator_events", "operator_events"),
    Period(OBJECTS, "artifacts"),
    Period(USED_TOKENS, "used_tokens"),
)
