"""JSON of pytest-benchmark (`--benchmark-json`): times in seconds."""

from functools import partial
from typing import Any

from orchestrator.results.adapters.base import (
    NANOSECONDS,
    Adapter,
    Average,
    MetricValue,
    Results,
    listed_latencies,
    metric_value,
)


def parse(document: Any, average: Average) -> Results | None:
    """Return the latency of each benchmark: mean and standard deviation, or median and interquartile range."""
    return listed_latencies(document, member="benchmarks", name="fullname", metric_of=partial(_metric, average=average))


def _metric(benchmark: Any, average: Average) -> MetricValue | None:
    stats = benchmark.get("stats")
    if not isinstance(stats, dict):
        return None
    names = ("mean", "stddev") if average == Average.MEAN else ("median", "iqr")
    middle, spread = (metric_value(stats.get(name), factor=NANOSECONDS["s"]) for name in names)
    if middle is None or spread is None:
        return None
    return metric_value(middle.value, middle.value - spread.value, middle.value + spread.value)


PYTHON_PYTEST = Adapter(is_json=True, parse=parse, averages=tuple(Average))
