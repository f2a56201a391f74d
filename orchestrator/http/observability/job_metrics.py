"""What Prometheus is told of jobs, under document 004's names. All of it is read from the database, so each process
tells the same; Prometheus takes it from any one of them."""

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection, transaction
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from orchestrator.maintenance import metrics_aggregation
from runtime_jobs.specs import JOB_TYPES

OF_LANE, IN_ALL, ROWS = 10_000, 100_000, 5000

COUNTERS = {
    "job_failures": ("Jobs that failed.", ("job_type", "reason")),
    "job_retry": ("New attempts of jobs.", ("job_type",)),
    "job_cancellations": ("Jobs that were canceled.", ("job_type", "reason")),
    "lease_extensions": ("Heartbeats that extended a lease, seen once a second.", ("job_type",)),
    "quota_exceeded": ("How often jobs began to wait for a limit, seen once a second.", ("kind", "tenant")),
    "scheduler_takeovers": ("How often a scheduler process began to lead.", ()),
    "scheduler_task_failures": ("Runs of a scheduler's task that failed as a whole.", ("task",)),
    "scheduler_row_failures": ("Rows that a scheduler's task could not process.", ("task",)),
    "retention_deleted": ("Rows that were deleted because they are older than the retention settings.", ("table",)),
}


class Counted(NamedTuple):
    name: str
    job_type: str
    detail: str
    org_slug: str
    bound: str
    value: float

    def labels(self, wanted: tuple[str, ...]) -> list[str]:
        told = {"job_type": self.job_type, "tenant": self.org_slug}
        told |= dict.fromkeys(("reason", "kind", "task", "table"), self.detail)
        return [told[name] for name in wanted]


def collect_job_metrics() -> Iterator[Metric]:
    """One bounded question. Raises what the database raises."""
    depths, breakers, counts = _look()
    yield _depth(depths)
    yield _breakers(breakers)
    rows = [Counted(*row) for row in counts]
    for name, (about, labels) in COUNTERS.items():
        family = CounterMetricFamily(name, about, labels=labels)
        for row in (row for row in rows if row.name == name):
            family.add_metric(row.labels(labels), row.value)
        yield family
    yield _latency(rows)


def _look() -> tuple[list[dict[str, Any]], dict[str, int], list[list[Any]]]:
    values: dict[str, Any] = {"tenants": settings.METRICS_TENANTS, "of_lane": OF_LANE, "in_all": IN_ALL, "rows": ROWS}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '2s'")
        cursor.execute(_sql(), values)
        depths, breakers, counts = (json.loads(column) for column in cursor.fetchone())
        return depths, breakers, counts


@cache
def _sql() -> str:
    return (Path(metrics_aggregation.__file__).parent / "sql" / "shown.sql").read_text()


def _depth(found: list[dict[str, Any]]) -> Metric:
    about = f"Jobs that wait. Counted to {OF_LANE} of those that are alike, and to {IN_ALL} in all."
    family = GaugeMetricFamily("job_queue_depth", about, labels=("job_type", "tenant"))
    waiting = {(row["job_type"], row["tenant"]): row["number"] for row in found}
    for labels, number in ({(job_type, ""): 0 for job_type in JOB_TYPES} | waiting).items():
        family.add_metric(labels, number)
    return family


def _breakers(found: dict[str, int]) -> Metric:
    about = "The worst of all organizations: 0 closed, 1 half-open, 2 open."
    family = GaugeMetricFamily("circuit_breaker_state", about, labels=("job_type",))
    for job_type, state in (dict.fromkeys(JOB_TYPES, 0) | found).items():
        family.add_metric([job_type], state)
    return family


def _latency(rows: list[Counted]) -> Metric:
    """Each observation is stored in one bucket; Prometheus wants each bucket with all below it."""
    about = "Of jobs that have ended: waiting (queued), on a worker (running), both (total)."
    family = HistogramMetricFamily("job_latency_seconds", about, labels=("job_type", "phase"))
    sums = {(row.job_type, row.detail): row.value for row in rows if row.name == "job_latency_sum"}
    buckets: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for row in rows:
        if row.name == "job_latency_bucket":
            buckets[row.job_type, row.detail][float(row.bound)] = row.value
    for labels, found in buckets.items():
        family.add_metric(labels, _cumulated(found), sum_value=sums.get(labels, 0.0))
    return family


def _cumulated(found: dict[float, float]) -> list[tuple[str, float]]:
    bounds = [*metrics_aggregation.BOUNDS, float("inf")]
    upto = [sum(value for bound, value in found.items() if bound <= limit) for limit in bounds]
    return [("+Inf" if bound == float("inf") else str(bound), value) for bound, value in zip(bounds, upto, strict=True)]
