"""Prometheus metrics of deliveries that wait or could not be delivered, read by one bounded query."""

from collections.abc import Iterator
from typing import Final

from django.db import connection, transaction
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

MAX_COUNTED: Final = 100_000

_QUERY: Final = """
SELECT (SELECT count(*) FROM (SELECT FROM deliveries WHERE due_at IS NOT NULL LIMIT %(limit)s) pending),
       (SELECT count(*) FROM (SELECT FROM deliveries WHERE status = 'dead' LIMIT %(limit)s) dead),
       (SELECT extract(epoch FROM clock_timestamp() - min(due_at))
          FROM (SELECT due_at FROM deliveries WHERE due_at IS NOT NULL LIMIT %(limit)s) pending),
       (SELECT extract(epoch FROM clock_timestamp() - max(beat_at)) FROM dispatch_position)"""


def collect_delivery_metrics() -> Iterator[Metric]:
    """Yield the metrics.

    Raises:
        DatabaseError: The query failed.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '2s'")
        cursor.execute(_QUERY, {"limit": MAX_COUNTED})
        pending, dead, oldest, beat = cursor.fetchone()
    yield _gauge("deliveries_pending", f"Deliveries that are not over; at most {MAX_COUNTED} are counted.", pending)
    yield _gauge("delivery_dead_letters", f"Dead letters; at most {MAX_COUNTED} are counted.", dead)
    yield _gauge(
        "delivery_oldest_due_seconds", "Seconds since the oldest pending delivery was due.", max(0.0, oldest or 0.0)
    )
    if beat is not None:
        yield _gauge("dispatcher_beat_age_seconds", "Seconds since a dispatcher last read events.", beat)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=float(value))
