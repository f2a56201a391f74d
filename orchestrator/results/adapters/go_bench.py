"""Output of `go test -bench`: the mean time of an operation."""

import re
from collections.abc import Iterator

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
    return latencies(_lines(text))


def _lines(text: str) -> Iterator[tuple[str, MetricValue]]:
    for match in _LINE.finditer(text):
        name, duration, unit = match.groups()
        value = parse_number(duration)
        if value is not None and is_benchmark_name(name):
            yield name, MetricValue(value * NANOSECONDS[unit])


GO_BENCH = Adapter(is_json=False, parse=parse, averages=(Average.MEAN,))
