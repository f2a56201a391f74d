"""JSON of Google Benchmark (`--benchmark_format=json`): the real time of an iteration."""

from typing import Any

from orchestrator.results.adapters.base import (
    NANOSECONDS,
    Adapter,
    Average,
    Results,
    is_benchmark_name,
    latencies,
    metric_value,
)


def parse(document: Any, _average: Average) -> Results | None:
    """Return the latency of each benchmark.

    Benchmarks that were skipped or ended with an error are left out, and so are the estimates of the complexity, which
    are no times.
    """
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list) or not isinstance(document.get("context"), dict):
        return None
    found = {}
    for benchmark in benchmarks:
        if not isinstance(benchmark, dict) or not is_benchmark_name(benchmark.get("name")):
            return None
        if benchmark.get("error_occurred") or benchmark.get("skipped") or _is_complexity(benchmark):
            continue
        unit = benchmark.get("time_unit")
        factor = NANOSECONDS.get(unit) if isinstance(unit, str) else None
        metric = metric_value(benchmark.get("real_time"), factor=factor) if factor else None
        if metric is None:
            return None
        found[benchmark["name"]] = metric
    return latencies(found.items())


def _is_complexity(benchmark: dict[str, Any]) -> bool:
    return "real_time" not in benchmark and ("real_coefficient" in benchmark or "rms" in benchmark)


CPP_GOOGLE = Adapter(is_json=True, parse=parse, averages=(Average.MEAN,))
