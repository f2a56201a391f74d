"""What Prometheus may ask for: requests by route, and how the queue stands. No label that a caller can invent."""

import json
import logging
import threading
import time
from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError, connection, transaction
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from orchestrator.http.asgi.connections import CONNECTIONS, REFUSED
from orchestrator.http.asgi.thread_pools import OVERLOADS, PENDING
from orchestrator.http.observability.job_metrics import collect_job_metrics
from orchestrator.notifications import metrics as waking
from orchestrator.notifications import stream_metrics as feeds
from runtime_jobs.db_errors import is_database_unavailable

log = logging.getLogger(__name__)

COUNTED = 100_000  # beyond so many waiting jobs the exact number helps nobody, and counting costs
REMEMBERED_SECONDS = 3.0
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

registry = CollectorRegistry()
ProcessCollector(registry=registry)
for _number in (*waking.ALL, *feeds.ALL, CONNECTIONS, REFUSED, OVERLOADS, PENDING):
    registry.register(_number)
_requests = Counter(
    "orchestrator_requests", "Requests answered by this process.", ["method", "route", "status"], registry=registry
)
_seconds = Histogram(
    "orchestrator_request_seconds",
    "Until the answer's head, waiting for work included.",
    ["method", "route"],
    buckets=BUCKETS,
    registry=registry,
)

# One statement, bounded: what is final is not counted, what waits up to COUNTED, each look by its partial index.
_QUESTION = """
SELECT (SELECT count(*) FROM (SELECT FROM runtime_jobs WHERE state = 'queued' LIMIT %(most)s) waiting),
       (SELECT count(*) FROM (SELECT FROM runtime_jobs WHERE state = 'blocked' LIMIT %(most)s) blocked),
       (SELECT coalesce(jsonb_object_agg(state, number), '{}') FROM
           (SELECT state, count(*) AS number FROM runtime_jobs
             WHERE state IN ('leased', 'starting', 'checking_out', 'executing', 'uploading') GROUP BY state) held),
       (SELECT count(*) FROM runtime_worker_leases WHERE state IN ('granted', 'active')),
       (SELECT extract(epoch FROM clock_timestamp() - created_at) FROM runtime_jobs
         WHERE status = 'queued' AND state = 'queued' ORDER BY created_at LIMIT 1),
       (SELECT extract(epoch FROM clock_timestamp() - max(beat_at)) FROM clock_beats)
"""


def count(method: str, route: str, status: int, seconds: float) -> None:
    """Note one answered request. The caller sees to it that method and route are of a finite set."""
    _requests.labels(method, route, str(status)).inc()
    _seconds.labels(method, route).observe(seconds)


class Database(Collector):
    """How things stand in the database. One look serves all scrapes of some seconds, so that nobody can make it work
    hard by asking often. A database that is down is a fact to report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        self._found: list[Metric] = []
        self._until = 0.0

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() >= self._until:
                self._found = list(_asked())
                self._until = time.monotonic() + REMEMBERED_SECONDS
            yield from self._found


def _asked() -> Iterator[Metric]:
    """A query that fails takes its own numbers away. Only a database that is away is reported as down: operators are
    woken for that."""
    found: list[Metric] = []
    is_up, failures = True, 0
    for ask in (lambda: _of_queue(*_look()), collect_job_metrics):
        try:
            found += ask()
        except (DatabaseError, InterfaceError) as error:
            failures += 1
            log.warning("a query for metrics failed: %s", type(error.__cause__ or error).__name__)
            if is_database_unavailable(error):
                is_up = False
                break
    yield _gauge("orchestrator_database_up", "Whether the database answers.", is_up)
    yield _gauge("orchestrator_metrics_queries_failed", "Queries for these numbers that failed just now.", failures)
    yield from found


def _of_queue(
    waiting: dict[str, int], held: dict[str, int], leases: int, oldest: float | None, beat: float | None
) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("orchestrator_jobs", f"Jobs that are not final; {COUNTED} at most.", labels=["state"])
    for state, number in (waiting | held).items():
        jobs.add_metric([state], number)
    yield jobs
    yield _gauge("orchestrator_open_leases", "Leases granted or active.", leases)
    yield _gauge("orchestrator_oldest_queued_seconds", "How long the oldest waiting job waits.", oldest or 0)
    if beat is not None:
        yield _gauge("orchestrator_clock_beat_age_seconds", "Since the clock's last round.", beat)


database = Database()
registry.register(database)


def _look() -> tuple[dict[str, int], dict[str, int], int, float | None, float | None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '2s'")
        cursor.execute(_QUESTION, {"most": COUNTED})
        queued, blocked, held, leases, oldest, beat = cursor.fetchone()
        return {"queued": queued, "blocked": blocked}, json.loads(held), leases, oldest, beat


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=float(value))
