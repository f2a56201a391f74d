"""Deletes what is older than the retention settings: steadily by the scheduler, at once by `manage.py prune`."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import connection, transaction

from orchestrator.artifacts.tasks import count_due_objects, delete_due_objects
from orchestrator.incidents.incident_mode import KEPT_ORGANIZATIONS
from orchestrator.job_tokens.partitions import RETENTION_DAYS as TOKEN_DAYS
from orchestrator.job_tokens.partitions import drop_expired_partitions, expired_tokens
from orchestrator.maintenance.pruners import RUNS, Pruner, TablePruner, cutoff_of, pruners
from orchestrator.services.pruning import KEEPS, UNIT
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.db_time import database_now

log = logging.getLogger(__name__)

SECONDS_A_ROUND = 0.5
IDLE_SECONDS = 600.0  # until the next check whether rows have become old enough, and after a failure
OBJECTS, USED_TOKENS = "stored objects", "actions_used_tokens"


class PruningTask:
    """Runs the pruners in turn: `delete_some` for a part of a scheduler's round, `delete_all` until nothing is left."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pruners = pruners()
        self._monotonic = monotonic

    def delete_some(
        self,
        *,
        seconds: float = SECONDS_A_ROUND,
        now: datetime | None = None,
        report: Callable[[str, int], None],
        before_step: Callable[[], None] = lambda: None,
    ) -> list[Exception]:
        """Delete old rows, step by step, until the time is up or nothing is left.

        A pruner that fails is logged and skipped for `IDLE_SECONDS`. It stops no other one.

        Args:
            seconds: No pruner begins another step after that.
            now: What "old" is measured from; the database's time by default.
            report: Called after each step with a table and the number of its deleted rows.
            before_step: Called before each step, which may last as long as a statement may.

        Returns:
            The errors of the pruners that have failed, and of the rows that were skipped.

        Raises:
            Error: The connection is lost; no further step could succeed.
        """
        until, now = self._monotonic() + seconds, now or database_now()
        due = [pruner for pruner in self._pruners if pruner.idle_until <= self._monotonic()]
        errors: list[Exception] = []
        while due and self._monotonic() < until:
            for pruner in list(due):
                before_step()
                try:
                    deleted, may_have_more = _step(pruner, now)
                except Exception as error:
                    if is_connection_lost(error):
                        raise
                    log.exception("%s failed; it is tried again in %d seconds", pruner, IDLE_SECONDS)
                    errors.append(error)
                    deleted, may_have_more = Counter[str](), False
                errors += pruner.skipped
                pruner.skipped.clear()
                for table, rows in deleted.items():
                    report(table, rows)
                if not may_have_more:
                    pruner.idle_until = self._monotonic() + IDLE_SECONDS
                    due.remove(pruner)
        return errors

    def delete_all(self, *, now: datetime | None = None) -> Counter[str]:
        """Delete all old rows.

        Returns:
            How many, by table.

        Raises:
            Exception: The first error of a pruner that has failed or skipped a row. All other old rows are deleted.
        """
        deleted: Counter[str] = Counter()

        def report(table: str, rows: int) -> None:
            deleted[table] += rows

        errors = self.delete_some(seconds=float("inf"), now=now, report=report)
        if errors:
            raise errors[0]
        return deleted


def _step(pruner: Pruner, now: datetime) -> tuple[Counter[str], bool]:
    before = pruner.cutoff(now)
    return pruner.step(before) if before else (Counter(), False)


def delete_everything(*, now: datetime | None = None) -> Counter[str]:
    """Delete all that is old, with its objects, and return the numbers by table.

    Housekeeping deletes objects, and days of used tokens, a little at a time. Objects of logs remain for two hours, so
    that a reader can complete its response; housekeeping deletes them then.

    Args:
        now: The present; by default the time of the database.

    Raises:
        Exception: The first error of what could not be deleted. All else is deleted.
    """
    now = now or database_now()
    try:
        deleted = PruningTask().delete_all(now=now)
    finally:
        objects = delete_due_objects(now)
        used_tokens = sum(drop_expired_partitions(now).values())
    return deleted + Counter({OBJECTS: objects, USED_TOKENS: used_tokens})


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
    Period("schedule_ticks", "schedule_ticks"),
    Period("bulk_targets", "bulk_actions"),
    Period("bulk_actions", "bulk_actions"),
    Period("incidents", "incidents"),
    Period("django_session", "sessions"),
    Period("throttle_windows", "throttle_windows"),
    Period("runner_channels", "runner_channels"),
    Period("django_admin_log", "admin_log"),
    Period("operator_events", "operator_events"),
    Period(OBJECTS, "artifacts"),
    Period(USED_TOKENS, "used_tokens"),
)
