"""Output of Criterion.rs: the estimate of the mean time, and its confidence interval."""

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

_TIME = rf"({NUMBER}) ({UNIT})"
# fib 20                  time:   [26.029 us 26.251 us 26.505 us]
# The name is cut out afterwards: a pattern that begins with it would take quadratic time on a line of blanks.
_LINE = re.compile(rf"(?:^|[ \t])time:[ \t]+\[{_TIME} {_TIME} {_TIME}\]\r?$", re.MULTILINE)


def parse(text: str, _average: Average) -> Results | None:
    """Return the latency of each benchmark. Criterion prints a long name in a line of its own, before the time."""
    return latencies(_lines(text))


def _lines(text: str) -> Iterator[tuple[str, MetricValue]]:
    for match in _LINE.finditer(text):
        name = _name(text, match.start())
        numbers = [parse_number(number) for number in match.group(1, 3, 5)]
        if is_benchmark_name(name) and None not in numbers:
            units = [NANOSECONDS[unit] for unit in match.group(2, 4, 6)]
            lower, value, upper = (
                number * unit for number, unit in zip(numbers, units, strict=True) if number is not None
            )
            yield name, MetricValue(value, lower, upper)


def _name(text: str, end: int) -> str:
    begin = text.rfind("\n", 0, end) + 1
    name = text[begin:end].strip()
    if name or not begin:
        return name
    return text[text.rfind("\n", 0, begin - 1) + 1 : begin].strip()


RUST_CRITERION = Adapter(is_json=False, parse=parse, averages=(Average.MEAN,))
