"""Counters of scheduler, housekeeping and dispatchers: rows of `metric_counts`. These processes serve no metrics."""

from collections import Counter

from django.db import connection

TASK_FAILURES = "scheduler_task_failures"
ROW_FAILURES = "scheduler_row_failures"
TAKEOVERS = "scheduler_takeovers"
RETENTION_DELETED = "retention_deleted"
HOUSEKEEPING_RUNS = "housekeeping_runs"
HOUSEKEEPING_FAILURES = "housekeeping_failures"

_ADD = """
INSERT INTO metric_counts AS c (name, job_type, detail, org_slug, bound, value)
SELECT name, '', detail, '', 0, value FROM unnest(%s::text[], %s::text[], %s::float8[]) AS added(name, detail, value)
    ON CONFLICT (name, job_type, detail, org_slug, bound) DO UPDATE SET value = c.value + excluded.value"""


class PendingCounts:
    """Counts that were not written yet: a round that fails adds to them, a later one writes them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, detail: str = "", value: int = 1) -> None:
        if value:
            self._counts[name, detail] += value

    def write(self) -> None:
        """Add all of them to the stored counters."""
        if not self._counts:
            return
        rows = sorted((name, detail, value) for (name, detail), value in self._counts.items())
        with connection.cursor() as cursor:
            cursor.execute(_ADD, [list(column) for column in zip(*rows, strict=True)])
        self._counts.clear()
