"""Output of `go test -bench`: the mean time of an operation."""

import re

from orchestrator.results.adapters.base import (
    NANOSECONDS,
    NUMBER,
    UNIT,
    Adapter,
    Average,
    MetricValue,
    Results,
    is_benchmark_name,
    latencies,
    parse_number,
)

# BenchmarkFib20-8   	   30000	     40537.123 ns/op	     0 B/op
_LINE = re.compile(
    rf"^(Benchmark\S*)[ \t]+[0-9]+[ \t]+({NUMBER})[ \t]+({UNIT})/op(?=[ \t\r]|$)",
    re.MULTILINE,
)


def parse(text: str, _average: Average) -> Results | None:
    """Return the latency of each benchmark. The name keeps the number of processors; the last line of a name counts."""
    found = {}
    for name, duration, unit in _LINE.findall(text):
        value = parse_number(duration)
        if value is not None and is_benchmark_name(name):
            found[name] = MetricValue(value * NANOSECONDS[unit])
    return latencies(found)


GO_BENCH = Adapter(is_json=False, parse=parse, averages=(Average.MEAN,))
