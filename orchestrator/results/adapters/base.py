"""The types that adapters share: what they read and what they return."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import TextChoices

MAX_BENCHMARK_NAME_BYTES = 1024
MAX_BENCHMARKS = 50_000  # of one text; an adapter stops at the first one above, and the whole result is refused
LATENCY = "latency"
NANOSECONDS = {"ps": 1e-3, "ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
UNIT = "ps|ns|us|µs|μs|ms|s"
NUMBER = r"[0-9.,]{1,40}"  # bounded: converting a long text of digits takes quadratic time


class AdapterName(TextChoices):
    """The names of the adapters in the API of Bencher. A name of a language selects all its adapters."""

    MAGIC = "magic"
    JSON = "json"
    RUST = "rust"
    RUST_BENCH = "rust_bench"
    RUST_CRITERION = "rust_criterion"
    CPP = "cpp"
    CPP_GOOGLE = "cpp_google"
    GO = "go"
    GO_BENCH = "go_bench"
    PYTHON = "python"
    PYTHON_PYTEST = "python_pytest"
    SHELL = "shell"
    SHELL_HYPERFINE = "shell_hyperfine"


class Average(TextChoices):
    """The average that a harness with several averages reports."""

    MEAN = "mean"
    MEDIAN = "median"


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The value of a measure, and the ends of its interval if there are any. All are finite."""

    value: float
    lower: float | None = None
    upper: float | None = None


# Values by measure, by benchmark.
Results = dict[str, dict[str, MetricValue]]


@dataclass(frozen=True)
class Adapter:
    """A format of results.

    Attributes:
        is_json: Whether `parse` gets a parsed JSON document instead of a text.
        parse: Returns the results, or None if the text or document is not of this format.
        averages: The averages that the format has. Any other one makes results unreadable.
    """

    is_json: bool
    parse: Callable[[Any, Average], Results | None]
    averages: tuple[Average, ...]


def metric_value(value: Any, lower: Any = None, upper: Any = None, *, factor: float = 1.0) -> MetricValue | None:
    """Return a metric of JSON numbers, or None if one of them is no finite number.

    Args:
        value: The value.
        lower: The lower end of the interval, or None.
        upper: The upper end, or None.
        factor: By which all of them are multiplied.
    """
    numbers = [_scaled(number, factor) for number in (value, lower, upper)]
    is_wrong = [
        number is None and given is not None for number, given in zip(numbers, (value, lower, upper), strict=True)
    ]
    if numbers[0] is None or any(is_wrong):
        return None
    return MetricValue(numbers[0], numbers[1], numbers[2])


def _scaled(number: Any, factor: float) -> float | None:
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    try:
        scaled = float(number) * factor
    except OverflowError:  # an integer above the largest double
        return None
    return scaled if math.isfinite(scaled) else None


def parse_number(text: str) -> float | None:
    """Return the number that a harness prints with commas between thousands, or None."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def is_benchmark_name(name: Any) -> bool:
    """Return whether this is a name that a benchmark may have: 1 to 1024 bytes of UTF-8, none of them NUL."""
    if not isinstance(name, str) or not name.strip() or "\0" in name or len(name) > MAX_BENCHMARK_NAME_BYTES:
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= MAX_BENCHMARK_NAME_BYTES


def listed_latencies(
    document: Any, *, member: str, name: str, metric_of: Callable[[Any], MetricValue | None]
) -> Results | None:
    """Return the latency of each benchmark that a member of a JSON document lists; None if one cannot be read.

    Args:
        document: The document.
        member: The member of the document that has the list.
        name: The member of an entry that has the name of its benchmark.
        metric_of: Returns the metric of an entry that has a name.
    """
    entries = document.get(member) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return None
    found = {}
    for entry in entries:
        if not isinstance(entry, dict) or not is_benchmark_name(entry.get(name)):
            return None
        metric = metric_of(entry)
        if metric is None:
            return None
        found[entry[name]] = metric
    return latencies(found.items())


def latencies(found: Iterable[tuple[str, MetricValue]]) -> Results | None:
    """Return results with one latency for each benchmark, or None without a benchmark. The last one of a name counts.

    Args:
        found: Names and values. Not more than `MAX_BENCHMARKS` and one more benchmark are read from it.
    """
    results: Results = {}
    for name, value in found:
        results[name] = {LATENCY: value}
        if len(results) > MAX_BENCHMARKS:
            break
    return results or None
