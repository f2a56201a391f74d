"""Output of `cargo bench` with the harness of the compiler (libtest): the median, and the deviation around it."""

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

# test bleu::bench_bleu ... bench:     298,794.10 ns/iter (+/- 2,639.98) = 12 MB/s
_LINE = re.compile(
    rf"^test[ \t]+(\S+)[ \t]+\.\.\.[ \t]+bench:[ \t]+({NUMBER})[ \t]+({UNIT})/iter[ \t]+\(\+/-[ \t]+({NUMBER})\)"
    r"(?:[ \t]+=[ \t]+[0-9]+[ \t]+MB/s)?\r?$",
    re.MULTILINE,
)


def parse(text: str, _average: Average) -> Results | None:
    """Return the latency of each benchmark. Other lines, such as those of failed and ignored tests, are skipped."""
    return latencies(_lines(text))


def _lines(text: str) -> Iterator[tuple[str, MetricValue]]:
    for match in _LINE.finditer(text):
        name, duration, unit, deviation = match.groups()
        value, spread = parse_number(duration), parse_number(deviation)
        if value is not None and spread is not None and is_benchmark_name(name):
            value, spread = value * NANOSECONDS[unit], spread * NANOSECONDS[unit]
            yield name, MetricValue(value, value - spread, value + spread)


RUST_BENCH = Adapter(is_json=False, parse=parse, averages=(Average.MEDIAN,))
