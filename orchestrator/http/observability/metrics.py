"""Prometheus metrics of a process and of the queue. No label value can be chosen by a client."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError, connection, transaction
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from orchestrator.http.asgi.connections import CONNECTIONS, REFUSED
from orchestrator.http.asgi.thread_pools import OVERLOADS, PENDING
from orchestrator.http.observability.delivery_metrics import collect_delivery_metrics
from orchestrator.http.observability.job_metrics import collect_job_metrics
from orchestrator.pubsub import metrics as notification_metrics
from orchestrator.results.outputs import OUTPUT_FAILURES
from runtime_jobs.db_errors import is_database_unavailable, log_level_of

log = logging.getLogger(__name__)

MAX_COUNTED_JOBS = 100_000  # by state: counting more costs too much, and the exact number has no use
CACHE_SECONDS = 3.0
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

registry = CollectorRegistry()
ProcessCollector(registry=registry)
for _metric in (*notification_metrics.ALL, CONNECTIONS, REFUSED, OVERLOADS, PENDING, OUTPUT_FAILURES):
    registry.register(_metric)
_requests = Counter(
    "orchestrator_requests", "Requests answered by this process.", ["method", "route", "status"], registry=registry
)
_seconds = Histogram(
    "orchestrator_request_seconds",
    "Seconds until the head of the response, including the wait of a long poll.",
    ["method", "route"],
    buckets=BUCKETS,
    registry=registry,
)

# One bounded statement: final jobs are not counted, waiting jobs up to the limit, each state by its partial index.
_QUERY = """
SELECT (SELECT count(*) FROM (SELECT FROM runtime_jobs WHERE state = 'queued' LIMIT %(limit)s) waiting),
       (SELECT count(*) FROM (SELECT FROM runtime_jobs WHERE state = 'blocked' LIMIT %(limit)s) blocked),
       (SELECT coalesce(jsonb_object_agg(state, number), '{}') FROM
           (SELECT state, count(*) AS number FROM runtime_jobs
             WHERE state IN ('leased', 'starting', 'checking_out', 'executing', 'uploading') GROUP BY state
             UNION ALL
            SELECT state, count(*) FROM runtime_jobs WHERE state IN ('lost', 'processing') GROUP BY state) active),
       (SELECT count(*) FROM runtime_worker_leases WHERE completed_at IS NULL),
       (SELECT extract(epoch FROM clock_timestamp() - created_at) FROM runtime_jobs
         WHERE state = 'queued' ORDER BY created_at LIMIT 1),
       (SELECT extract(epoch FROM clock_timestamp() - max(beat_at)) FROM clock_beats),
       -- The times of other roles' transactions are hidden from this one, but not their oldest transaction ids. So the
       -- age is that of the first event which the oldest snapshot lacks. A vacuum holds nothing back.
       (SELECT extract(epoch FROM clock_timestamp() - created_at) FROM runtime_job_events
         WHERE xid >= (SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - max(age(xmin)))::text::xid8
                         FROM (SELECT backend_xmin AS xmin FROM pg_stat_activity
                                WHERE pid <> pg_backend_pid()
                                  AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum
                                                  UNION ALL SELECT pid FROM pg_stat_progress_analyze)
                                  AND (datname = current_database() OR datname IS NULL)
                                UNION ALL
                               SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()
                                UNION ALL
                               SELECT xmin FROM pg_replication_slots) held)
         ORDER BY xid, id LIMIT 1)
"""


class _Numbers(NamedTuple):
    """The row of the statement. Ages are in seconds, None if there is nothing that has one."""

    jobs: dict[str, int]
    leases: int
    oldest: float | None
    beat: float | None
    snapshot: float | None


def count(method: str, route: str, status: int, seconds: float) -> None:
    """Count one answered request.

    Args:
        method: HTTP method, from a finite set.
        route: Route of the URL configuration, from a finite set.
        status: HTTP status.
        seconds: Time until the head of the response.
    """
    _requests.labels(method, route, str(status)).inc()
    _seconds.labels(method, route).observe(seconds)


class DatabaseCollector(Collector):
    """Metrics that are read from the database, at most once in CACHE_SECONDS however often they are scraped.

    A database that is down is reported as a metric, not as an error.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Discard the cached metrics."""
        self._found: list[Metric] = []
        self._valid_until = 0.0

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() >= self._valid_until:
                self._found = list(_read_metrics())
                self._valid_until = time.monotonic() + CACHE_SECONDS
            yield from self._found


def _read_metrics() -> Iterator[Metric]:
    """Yield the metrics of all queries that succeed.

    Only a database that cannot be reached is reported as down, because operators are alerted for that.
    """
    found: list[Metric] = []
    is_up, failures = True, 0
    for read in (lambda: _queue_metrics(_read_queue()), collect_job_metrics, collect_delivery_metrics):
        try:
            found += read()
        except (DatabaseError, InterfaceError) as error:
            failures += 1
            log.log(log_level_of(error), "a query for metrics failed: %s", type(error.__cause__ or error).__name__)
            if is_database_unavailable(error):
                is_up = False
                break
    yield _gauge("orchestrator_database_up", "1 while the database can be reached, else 0.", is_up)
    yield _gauge(
        "orchestrator_metrics_queries_failed", "Queries for these metrics that failed during this collection.", failures
    )
    yield from found


def _queue_metrics(found: _Numbers) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "orchestrator_jobs",
        f"Jobs by state, final states excluded; at most {MAX_COUNTED_JOBS} of a waiting state are counted.",
        labels=["state"],
    )
    for state, number in found.jobs.items():
        jobs.add_metric([state], number)
    yield jobs
    yield _gauge("orchestrator_open_leases", "Leases that are granted or active.", found.leases)
    yield _gauge(
        "orchestrator_oldest_queued_seconds", "Seconds since the oldest queued job was created.", found.oldest or 0
    )
    yield _gauge(
        "orchestrator_oldest_snapshot_seconds",
        "Seconds since the first event of a job that the oldest open snapshot lacks.",
        found.snapshot or 0,
    )
    if found.beat is not None:
        help_text = "Seconds since the last beat of the leading scheduler process."
        yield _gauge("orchestrator_clock_beat_age_seconds", help_text, found.beat)


database = DatabaseCollector()
registry.register(database)


def _read_queue() -> _Numbers:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '2s'")
        cursor.execute(_QUERY, {"limit": MAX_COUNTED_JOBS})
        queued, blocked, active, *others = cursor.fetchone()
        return _Numbers({"queued": queued, "blocked": blocked} | json.loads(active), *others)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=float(value))
