"""Bencher Metric Format: a JSON object of benchmarks, each an object of measures, each with `value` and bounds."""

from typing import Any

from orchestrator.results.adapters.base import Adapter, Average, MetricValue, Results, is_benchmark_name, metric_value

MAX_MEASURE_NAME_LENGTH = 64


def parse(document: Any, _average: Average) -> Results | None:
    """Return the results. An empty object has no results; unknown members of a metric are ignored."""
    if not isinstance(document, dict):
        return None
    results: Results = {}
    for benchmark, measures in document.items():
        found = _metrics(measures)
        if found is None or not is_benchmark_name(benchmark):
            return None
        results[benchmark] = found
    return results


def _metrics(measures: Any) -> dict[str, MetricValue] | None:
    if not isinstance(measures, dict):
        return None
    metrics = {}
    for measure, metric in measures.items():
        if not isinstance(metric, dict) or not is_measure_name(measure):
            return None
        value = metric_value(metric.get("value"), metric.get("lower_value"), metric.get("upper_value"))
        if value is None:
            return None
        metrics[measure] = value
    return metrics


def is_measure_name(name: str) -> bool:
    """Return whether this is a name that a measure may have: 1 to 64 bytes, no blanks around it, no NUL."""
    return bool(name) and name == name.strip() and "\0" not in name and len(name.encode()) <= MAX_MEASURE_NAME_LENGTH


BENCHER_METRIC_FORMAT = Adapter(is_json=True, parse=parse, averages=tuple(Average))
