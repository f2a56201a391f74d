"""JSON of hyperfine (`--export-json`): times in seconds."""

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
    """Return the latency of each command: the mean and the standard deviation, or the median, minimum and maximum."""
    return listed_latencies(document, member="results", name="command", metric_of=partial(_metric, average=average))


def _metric(result: Any, average: Average) -> MetricValue | None:
    seconds = NANOSECONDS["s"]
    if average == Average.MEDIAN:
        lower, upper = result.get("min"), result.get("max")
        if lower is None or upper is None:
            return None
        return metric_value(result.get("median"), lower, upper, factor=seconds)
    mean = metric_value(result.get("mean"), factor=seconds)
    if mean is None or result.get("stddev") is None:  # hyperfine has none for a single run
        return mean
    spread = metric_value(result["stddev"], factor=seconds)
    if spread is None:
        return None
    return metric_value(mean.value, mean.value - spread.value, mean.value + spread.value)


SHELL_HYPERFINE = Adapter(is_json=True, parse=parse, averages=tuple(Average))
