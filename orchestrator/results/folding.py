"""Folds the results of several iterations into one: minimum, maximum, mean or median of each metric."""

import math
from collections.abc import Callable, Sequence

from django.db.models import TextChoices

from orchestrator.results.adapters.base import MetricValue, Results


class Fold(TextChoices):
    """The operation that makes one result of several iterations."""

    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    MEDIAN = "median"


def fold_results(iterations: Sequence[Results], fold: Fold) -> Results:
    """Return one result for all iterations. A metric is folded over the iterations that have it."""
    collected: dict[str, dict[str, list[MetricValue]]] = {}
    for results in iterations:
        for benchmark, measures in results.items():
            of_benchmark = collected.setdefault(benchmark, {})
            for measure, metric in measures.items():
                of_benchmark.setdefault(measure, []).append(metric)
    combine = _FOLDS[fold]
    return {
        benchmark: {measure: combine(metrics) for measure, metrics in measures.items()}
        for benchmark, measures in collected.items()
    }


def _order(metric: MetricValue) -> tuple[float, float, float]:
    """Order metrics by value, then by the upper and the lower end. No end precedes any end."""
    upper = -math.inf if metric.upper is None else metric.upper
    lower = -math.inf if metric.lower is None else metric.lower
    return metric.value, upper, lower


def _minimum(metrics: Sequence[MetricValue]) -> MetricValue:
    return min(metrics, key=_order)


def _maximum(metrics: Sequence[MetricValue]) -> MetricValue:
    return max(metrics, key=_order)


def _mean(metrics: Sequence[MetricValue]) -> MetricValue:
    """Average the values and the ends. A metric without an end counts with its value, unless all have none."""
    return MetricValue(
        _average([metric.value for metric in metrics]),
        _average_end([(metric.lower, metric.value) for metric in metrics]),
        _average_end([(metric.upper, metric.value) for metric in metrics]),
    )


def _median(metrics: Sequence[MetricValue]) -> MetricValue:
    """Return the middle metric with its ends, or the mean of the two middle ones."""
    ordered = sorted(metrics, key=_order)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else _mean(ordered[middle - 1 : middle + 1])


def _average_end(ends: Sequence[tuple[float | None, float]]) -> float | None:
    if all(end is None for end, _ in ends):
        return None
    return _average([value if end is None else end for end, value in ends])


def _average(numbers: Sequence[float]) -> float:
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:  # the sum is above the largest double, the mean is not
        return math.fsum(number / len(numbers) for number in numbers)


_FOLDS: dict[Fold, Callable[[Sequence[MetricValue]], MetricValue]] = {
    Fold.MIN: _minimum,
    Fold.MAX: _maximum,
    Fold.MEAN: _mean,
    Fold.MEDIAN: _median,
}
