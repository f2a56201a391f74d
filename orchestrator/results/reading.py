"""Reads the output of a job: bytes in, metrics of each iteration out. Pure functions, bounded in time and memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.results.adapters import Average, Results, parse_results
from orchestrator.results.adapters.base import MAX_BENCHMARKS
from orchestrator.results.folding import Fold, fold_results

MAX_METRICS = MAX_BENCHMARKS  # of a report, over all iterations; a benchmark without metrics counts as one
MAX_TEXTS = 10_000  # files and standard outputs of all iterations
MAX_FILES = 256  # of an iteration: 255 that a job may name, and the file of the runner's own measurements
# Brackets and commas of one JSON text: each separates values, and each value needs up to 100 bytes of memory.
MAX_JSON_SEPARATORS = 2_000_000


class UnreadableResult(Exception):
    """The results of a job cannot be read. The message is for people and contains no results."""


@dataclass(frozen=True)
class ReadingSettings:
    """The settings of a report by which its results are read.

    Attributes:
        adapter: A name of `AdapterName`.
        average: The requested average, or None for that of the adapter.
        fold: How iterations become one, or None.
    """

    adapter: str
    average: Average | None = None
    fold: Fold | None = None


def read_body(body: bytes, settings: ReadingSettings) -> list[Results]:
    """Return the metrics in a stored output, one element for each iteration, or one in all with a fold.

    Args:
        body: JSON, `{"results": [iteration, ...], "error"?: text, "truncated"?: true}`.
        settings: The settings of the report.

    Raises:
        UnreadableResult: The output is truncated, for which `error` has the reason; a text is in no format of the
            adapter, or a limit is exceeded.
    """
    return read_texts(list(texts_of(_iterations(body))), settings)


def read_texts(texts: Sequence[str], settings: ReadingSettings) -> list[Results]:
    """Return the metrics of results that a client or a job has printed. Without texts there are no metrics.

    Raises:
        UnreadableResult: A text is in no format of the adapter, or a limit is exceeded.
    """
    if len(texts) > MAX_TEXTS:
        raise UnreadableResult(f"The job has more than {MAX_TEXTS} files and outputs.")
    iterations: list[Results] = []
    left = MAX_METRICS
    for number, text in enumerate(texts, start=1):
        results = _read_text(text, settings, f"Result {number} of {len(texts)}")
        # A benchmark without metrics counts, too: reading and folding it takes time and memory.
        left -= sum(max(1, len(metrics)) for metrics in results.values())
        if left < 0:
            raise UnreadableResult(f"The results have more than {MAX_METRICS} metrics and benchmarks without metrics.")
        iterations.append(results)
    if settings.fold is None or not iterations:
        return iterations
    return [fold_results(iterations, settings.fold)]


def texts_of(iterations: Sequence[Any]) -> Iterator[str]:
    """Yield the texts to read: of each iteration its files in the order of their paths, or else its standard output.

    An iteration with a map of files, even an empty one, has no other text. The error output is never read.

    Raises:
        UnreadableResult: An iteration has another form, or too many files.
    """
    for iteration in iterations:
        if not isinstance(iteration, dict):
            raise UnreadableResult("An iteration of the output is not a JSON object.")
        files = iteration.get("output")
        if files is None:
            texts = [iteration.get("stdout")]
        elif not isinstance(files, dict):
            raise UnreadableResult("The files of an iteration are not a JSON object.")
        elif len(files) > MAX_FILES:
            raise UnreadableResult(f"An iteration has more than {MAX_FILES} files.")
        else:
            texts = [files[path] for path in sorted(files, key=_components)]
        for text in texts:
            if isinstance(text, str):
                yield text
            elif text is not None or files is not None:
                raise UnreadableResult("A file or an output of an iteration is not a text.")


def _components(path: str) -> list[str]:
    """Order paths as Bencher does: component by component."""
    return path.split("/")


def _iterations(body: bytes) -> list[Any]:
    try:
        document = orjson.loads(body)
    except ValueError:
        raise UnreadableResult("The stored output is not JSON.") from None
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list):
        raise UnreadableResult("The stored output has no list of iterations.")
    if document.get("truncated"):
        raise UnreadableResult(str(document.get("error")))
    return results


def _read_text(text: str, settings: ReadingSettings, place: str) -> Results:
    if text.count("{") + text.count("[") + text.count(",") > MAX_JSON_SEPARATORS:
        raise UnreadableResult(f"{place} has more than {MAX_JSON_SEPARATORS} values.")
    try:
        results = parse_results(settings.adapter, text, settings.average)
    except RecursionError:
        results = None
    if results is None:
        average = f" with the average {settings.average}" if settings.average else ""
        raise UnreadableResult(f"{place} is not in a format of the adapter {settings.adapter}{average}.")
    return results
