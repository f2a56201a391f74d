"""JSON of pytest-benchmark (`--benchmark-json`): times in seconds."""

from typing import Any

from orchestrator.results.adapters.base import (
    NANOSECONDS,
    Adapter,
    Average,
    MetricValue,
    Results,
    is_benchmark_name,
    latencies,
    metric_value,
)


def parse(document: Any, average: Average) -> Results | None:
    """Return the latency of each benchmark: mean and standard deviation, or median and interquartile range."""
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list):
        return None
    found = {}
    for benchmark in benchmarks:
        metric = _metric(benchmark, average)
        if metric is None:
            return None
        found[benchmark["fullname"]] = metric
    return latencies(found.items())


def _metric(benchmark: Any, average: Average) -> MetricValue | None:
    stats = benchmark.get("stats") if isinstance(benchmark, dict) else None
    if not isinstance(stats, dict) or not is_benchmark_name(benchmark.get("fullname")):
        return None
    names = ("mean", "stddev") if average == Average.MEAN else ("median", "iqr")
    middle, spread = (metric_value(stats.get(name), factor=NANOSECONDS["s"]) for name in names)
    if middle is None or spread is None:
        return None
    return metric_value(middle.value, middle.value - spread.value, middle.value + spread.value)


PYTHON_PYTEST = Adapter(is_json=True, parse=parse, averages=tuple(Average))
