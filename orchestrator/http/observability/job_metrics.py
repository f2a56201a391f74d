"""Prometheus metrics of jobs, with the names of document 004.

All of them are read from the database, so every process returns the same values. Scrape one process.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection, transaction
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from orchestrator.core import metrics_aggregation
from orchestrator.core.counters import write_counts
from orchestrator.http.observability.actions_metrics import actions_metrics
from orchestrator.incidents.models import IncidentKind
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.payload import PACK_RUN

MAX_PER_LANE, MAX_JOBS, MAX_COUNTERS, MAX_INCIDENTS = 10_000, 100_000, 5000, 10_000

# The names and labels of document 004 have its spelling, `jobType`. All others have that of the native API.
COUNTERS = {
    "job_failures": ("Jobs that failed.", ("jobType", "reason")),
    "job_claims": ("Jobs that a worker has claimed.", ("job_type",)),
    "job_updates": ("Changes of the state of jobs, by the new state.", ("job_type", "state")),
    "job_late_results": ("Results of lost jobs that counted.", ("job_type",)),
    "job_retry": ("New attempts of jobs.", ("jobType",)),
    "job_cancellations": ("Jobs that were canceled.", ("job_type", "reason")),
    "billed_minutes": ("Billed minutes of jobs that have ended.", ("job_type", "tenant")),
    "lease_extensions": ("Heartbeats that extended a lease, sampled once a second.", ("jobType",)),
    "quota_exceeded": ("Times that jobs began to wait for a limit, sampled once a second.", ("tenant",)),
    "limit_waits": ("The same by the kind of the limit.", ("kind", "tenant")),
    "pack_run_heartbeats": ("Heartbeats that extended the lease of a pack run, sampled once a second.", ()),
    "pack_run_artifacts": ("Artifacts of pack runs that have ended.", ()),
    "scheduler_takeovers": ("Times that a scheduler process became the leader.", ()),
    "scheduler_task_failures": ("Runs of a scheduler task that failed as a whole.", ("task",)),
    "scheduler_row_failures": ("Rows that a scheduler task could not process.", ("task",)),
    "retention_deleted": ("Rows deleted because they were older than the retention settings.", ("table",)),
    "deliveries": ("Tries of deliveries to webhooks and by mail.", ("result",)),
    "housekeeping_runs": ("Executions of housekeeping tasks.", ("task",)),
    "housekeeping_failures": ("Executions of housekeeping tasks that failed.", ("task",)),
}


# Counters that are read from the counts of another one: its name, and the job type or None for all.
STORED_AS = {
    "limit_waits": ("quota_exceeded", None),
    "pack_run_heartbeats": ("lease_extensions", PACK_RUN),
}


class StoredCount(NamedTuple):
    """A row of `metric_counts`."""

    name: str
    job_type: str
    detail: str
    org_slug: str
    bound: str
    value: float

    def labels(self, names: tuple[str, ...]) -> list[str]:
        """Return the values of the labels in this order."""
        values = {"job_type": self.job_type, "jobType": self.job_type, "tenant": self.org_slug}
        values |= dict.fromkeys(("reason", "kind", "task", "table", "state", "result"), self.detail)
        return [values[name] for name in names]


def collect_job_metrics() -> Iterator[Metric]:
    """Yield the metrics, which one bounded query reads.

    Raises:
        DatabaseError: The query failed.
    """
    write_counts()
    depths, breakers, incidents, counts = _read()
    yield _queue_depth(depths)
    yield _breakers(breakers)
    rows = [StoredCount(*row) for row in counts]
    for name, (help_text, labels) in COUNTERS.items():
        stored, job_type = STORED_AS.get(name, (name, None))
        totals: dict[tuple[str, ...], float] = defaultdict(float, {} if labels else {(): 0.0})
        for row in (row for row in rows if row.name == stored and job_type in {None, row.job_type}):
            totals[tuple(row.labels(labels))] += row.value
        family = CounterMetricFamily(name, help_text, labels=labels)
        for values, total in totals.items():
            family.add_metric(values, total)
        yield family
    yield from actions_metrics((row.name, row.detail, row.value) for row in rows)
    help_text = "Seconds that finished jobs were queued (queued), on a worker (running), and both (total)."
    yield _histogram("job_latency_seconds", help_text, ("jobType", "phase"), rows, "job_latency")
    running = [row for row in rows if row.job_type == PACK_RUN and row.detail == "running"]
    yield _histogram(
        "pack_run_duration_seconds", "Seconds that pack runs were on a worker.", (), running, "job_latency"
    )
    help_text = "Seconds from the submit of jobs to their execution, by the tier of their priority."
    yield _histogram("job_queue_duration_seconds", help_text, ("job_type", "tier"), rows, "job_queue")
    yield _incidents(incidents)


def _read() -> tuple[list[dict[str, Any]], dict[str, int], dict[str, int], list[list[Any]]]:
    values: dict[str, Any] = {
        "tenants": metrics_aggregation.labelled_tenants(),
        "of_lane": MAX_PER_LANE,
        "in_all": MAX_JOBS,
        "rows": MAX_COUNTERS,
        "max_incidents": MAX_INCIDENTS,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '2s'")
        cursor.execute(_sql(), values)
        depths, breakers, incidents, counts = (json.loads(column) for column in cursor.fetchone())
        return depths, breakers, incidents, counts


@cache
def _sql() -> str:
    return (Path(metrics_aggregation.__file__).parent / "sql" / "exposition.sql").read_text()


def _queue_depth(found: list[dict[str, Any]]) -> Metric:
    help_text = f"Queued jobs; at most {MAX_PER_LANE} of a lane and {MAX_JOBS} in total are counted."
    family = GaugeMetricFamily("job_queue_depth", help_text, labels=("jobType", "tenant"))
    waiting = {(row["job_type"], row["tenant"]): row["number"] for row in found}
    for labels, number in ({(job_type, ""): 0 for job_type in JOB_TYPES} | waiting).items():
        family.add_metric(labels, number)
    return family


def _breakers(found: dict[str, int]) -> Metric:
    help_text = "The worst state of all organizations: 0 closed, 1 half-open, 2 open."
    family = GaugeMetricFamily("circuit_breaker_state", help_text, labels=("jobType",))
    for job_type, state in (dict.fromkeys(JOB_TYPES, 0) | found).items():
        family.add_metric([job_type], state)
    return family


def _incidents(found: dict[str, int]) -> Metric:
    help_text = f"Incidents that are not resolved; at most {MAX_INCIDENTS} are counted."
    family = GaugeMetricFamily("orchestrator_incidents", help_text, labels=("kind",))
    for kind, number in (dict.fromkeys(map(str, IncidentKind), 0) | found).items():
        family.add_metric([kind], number)
    return family


def _histogram(name: str, help_text: str, labels: tuple[str, ...], rows: list[StoredCount], stored: str) -> Metric:
    """Return a histogram. The database stores each observation in one bucket; Prometheus expects cumulative ones.

    Args:
        name: The name of the metric.
        help_text: Its description.
        labels: The labels of the job type and of the detail, or none.
        rows: All stored counts that belong to it.
        stored: The begin of the names of its counts.
    """
    family = HistogramMetricFamily(name, help_text, labels=labels)
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    buckets: dict[tuple[str, ...], dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        values = (row.job_type, row.detail)[: len(labels)]
        if row.name == f"{stored}_sum":
            sums[values] += row.value
        elif row.name == f"{stored}_bucket":
            buckets[values][float(row.bound)] += row.value
    for values, found in buckets.items():
        family.add_metric(values, _cumulative(found), sum_value=sums[values])
    return family


def _cumulative(found: dict[float, float]) -> list[tuple[str, float]]:
    bounds = [*metrics_aggregation.BOUNDS, float("inf")]
    totals = [sum(value for bound, value in found.items() if bound <= limit) for limit in bounds]
    return [
        ("+Inf" if bound == float("inf") else str(bound), value) for bound, value in zip(bounds, totals, strict=True)
    ]
