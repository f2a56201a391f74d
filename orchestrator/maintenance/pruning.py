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
from orchestrator.services.pruning import KEEPS, UNIT
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.db_time import database_now
from runtime_jobs.events import delete_operator_events

ROWS = 1000  # of a simple table in one transaction
JOBS = 100  # looked at in one transaction
LOG_CHUNKS = 500  # looked at in one step; each log is deleted in a transaction of its own
SECONDS_A_ROUND = 0.5
SLOW_SECONDS = 1.0  # a step that takes longer is followed by one with half as many rows
IDLE_SECONDS = 600.0  # until the next check whether rows have become old enough


class Pruner:
    """One kind of rows. `step` deletes some and says whether the pass is over."""

    def __init__(self, setting: str) -> None:
        self.setting = setting
        self.idle_until = 0.0
        self._found = False  # something was deleted in this pass

    def cutoff(self, now: datetime) -> datetime | None:
        """Return the time before which rows are old, or None where all are kept."""
        days = settings.RETENTION_DAYS[self.setting]
        return now - timedelta(days=days) if days else None

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        """Delete some rows. Returns the deleted rows by table, and whether there may be more."""
        raise NotImplementedError


class TablePruner(Pruner):
    """Rows of a table that nothing refers to, by one column with their time."""

    def __init__(self, setting: str, table: str, key: str, column: str, *, by_key: bool = False) -> None:
        super().__init__(setting)
        self.table = table
        # By the key where the column has no index: keys rise with the time, so the first ones are the oldest.
        oldest = f"(SELECT * FROM {table} ORDER BY {key} LIMIT %(rows)s) oldest" if by_key else table  # noqa: S608
        # A locked row may just be renewed. After a wait for it, the DELETE would not check its time again. Rows of
        # tables that are read by the key are never updated.
        lock = "" if by_key else "FOR UPDATE SKIP LOCKED"
        self._delete = f"""DELETE FROM {table} WHERE {key} IN (
            SELECT {key} FROM {oldest} WHERE {column} < %(before)s ORDER BY {column} LIMIT %(rows)s {lock})"""  # noqa: S608
        self._count = f"SELECT count(*) FROM {table} WHERE {column} < %(before)s"  # noqa: S608

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
        super().__init__("operator_events", "operator_events", "id", "created_at")

    def step(self, before: datetime) -> tuple[Counter[str], bool]:
        deleted = delete_operator_events(created_before=before, limit=ROWS)
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
    """Jobs that have ended, with all that belongs to them."""

    def __init__(self) -> None:
        window = "SELECT id, id, created_at FROM runtime_jobs WHERE id > %(after)s ORDER BY id LIMIT %(rows)s"
        super().__init__("jobs", window, JOBS)

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:
        return services.delete_finished_jobs(job_ids=subjects, finished_before=before)


class LogPruner(WindowPruner):
    """Logs of jobs that have ended; the jobs stay."""

    def __init__(self) -> None:
        columns = "id, job_ulid, created_at"
        window = f"SELECT {columns} FROM runtime_job_log_chunks WHERE id > %(after)s ORDER BY id LIMIT %(rows)s"  # noqa: S608
        super().__init__("logs", window, LOG_CHUNKS)

    def delete(self, subjects: Sequence[Any], before: datetime) -> Counter[str]:
        jobs = list(dict.fromkeys(subjects))
        chunks = sum(services.delete_log(job_ulid=job_ulid, finished_before=before) for job_ulid in jobs)
        return Counter({"runtime_job_log_chunks": chunks})


def pruners() -> tuple[Pruner, ...]:
    """Return a pruner for each kind of rows that grows. What is small for each transaction comes first."""
    return (
        TablePruner("idempotency_keys", "idempotency_keys", "id", "created_at"),
        TablePruner("webhook_deliveries", "webhook_deliveries", "id", "received_at"),
        TablePruner("incidents", "incidents", "id", "resolved_at"),
        ExpiredPruner("sessions", "django_session", "session_key", "expire_date"),
        ExpiredPruner("login_attempts", "login_attempts", "key", "window_ends_at"),
        ExpiredPruner("request_windows", "request_windows", "key", "expires_at"),
        ExpiredPruner("runner_channels", "runner_channels", "process", "expires_at"),
        TablePruner("admin_log", "django_admin_log", "id", "action_time", by_key=True),
        OperatorEventPruner(),
        LogPruner(),
        TablePruner("runs", "ingest_runs", "id", "received_at", by_key=True),
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


_OLD_JOBS = f"""
WITH RECURSIVE j AS MATERIALIZED (
    SELECT job_ulid, root_job_ulid, batch_id, finished_at, {UNIT.format("runtime_jobs")} AS unit FROM runtime_jobs
), edge AS (
    SELECT DISTINCT waiting.unit AS waiting, needed.unit AS needed
      FROM runtime_job_dependencies d
      JOIN j waiting USING (job_ulid) JOIN j needed ON needed.job_ulid = d.on_job_ulid
     WHERE waiting.unit <> needed.unit
), kept AS (
    SELECT unit FROM j WHERE finished_at IS NULL OR finished_at >= %(before)s OR {KEEPS.format("j")}
     UNION
    SELECT edge.needed FROM edge JOIN kept ON kept.unit = edge.waiting
), old AS MATERIALIZED (SELECT job_ulid, batch_id FROM j WHERE unit NOT IN (SELECT unit FROM kept))
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
}
_OLD_LOGS = """SELECT count(*) FROM runtime_job_log_chunks c JOIN runtime_jobs j USING (job_ulid)
                WHERE j.finished_at < %(logs)s OR c.job_ulid IN (SELECT job_ulid FROM old)"""


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
    values = {"before": cutoffs["jobs"] or never, "logs": cutoffs["logs"] or never}
    columns = [f"(SELECT count(*) FROM {rows})" for rows in _OF_OLD_JOBS.values()]  # noqa: S608 our own names
    with connection.cursor() as cursor:
        cursor.execute(f"{_OLD_JOBS} SELECT {', '.join(columns)}, ({_OLD_LOGS})", values)
        yield from zip([*_OF_OLD_JOBS, "runtime_job_log_chunks"], cursor.fetchone(), strict=True)


@dataclass(frozen=True)
class Period:
    """Describes how long the rows of a table are kept, for the output of `manage.py prune`."""

    table: str
    setting: str

    def __str__(self) -> str:
        if self.setting not in settings.RETENTION_DAYS:
            return "until they expire"
        days = settings.RETENTION_DAYS[self.setting]
        return f"{days} days" if days else "for ever"


PERIODS = (
    *(Period(table, "jobs") for table in _OF_OLD_JOBS),
    Period("runtime_job_log_chunks", "logs"),
    Period("ingest_runs", "runs"),
    Period("idempotency_keys", "idempotency_keys"),
    Period("webhook_deliveries", "webhook_deliveries"),
    Period("incidents", "incidents"),
    Period("django_session", "sessions"),
    Period("login_attempts", "login_attempts"),
    Period("request_windows", "request_windows"),
    Period("runner_channels", "runner_channels"),
    Period("django_admin_log", "admin_log"),
    Period("operator_events", "operator_events"),
)
