"""Responses with the results of reports, of which a process keeps one page of metrics at a time.

A report of 50,000 metrics has up to 83 MB of JSON. As one document it took 240 MiB of memory for each request.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import orjson
from django.db import DatabaseError
from django.http import StreamingHttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.db_scope import release_connection_after
from orchestrator.protocols.bencher.base_view import JSON, TOTAL_COUNT
from orchestrator.protocols.bencher.reports.wire import (
    measured_document,
    report_document,
    resource_document,
    serialize_report,
    stored_counts,
)
from orchestrator.pubsub.log_hub import SourceUnavailable
from orchestrator.results.models import Metric, Report
from runtime_jobs.models import Project

PAGE_METRICS = 500
READERS = 2  # threads of a process, each with a database connection while it reads a page
ROW_ORDER = ("iteration", "benchmark__name", "benchmark_id", "measure__name")


def report_response(request: Request, report: Report, *, status: int = 200) -> Response | StreamingHttpResponse:
    """Return the response with one report and its results.

    Args:
        request: The request.
        report: The report with project, organization, branch, testbed, spec and result.
        status: The status of the response.
    """
    if _metric_count(report) <= PAGE_METRICS:
        return Response(serialize_report(report), status=status)
    return _streamed(request, _report_parts(report), status=status)


def expanded_response(request: Request, reports: Sequence[Report], total: int) -> Response | StreamingHttpResponse:
    """Return the response with a page of reports and their results.

    Args:
        request: The request.
        reports: The reports, as for `report_response`.
        total: The number of all reports, for `X-Total-Count`.
    """
    if sum(map(_metric_count, reports)) <= PAGE_METRICS:
        return Response([serialize_report(report) for report in reports], headers={TOTAL_COUNT: str(total)})
    response = _streamed(request, _list_parts(reports))
    response[TOTAL_COUNT] = str(total)
    return response


def _metric_count(report: Report) -> int:
    result = getattr(report, "result", None)
    return 0 if result is None else result.metric_count


def _streamed(request: Request, parts: Iterator[bytes], *, status: int = 200) -> StreamingHttpResponse:
    """Return a response with these parts. Under ASGI the threads of this module produce them, as the client reads."""
    content = _from_thread(parts) if hasattr(request._request, "scope") else parts  # noqa: SLF001 DRF's name
    return StreamingHttpResponse(content, content_type=JSON, status=status)


async def _from_thread(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    read = release_connection_after(next)
    loop = asyncio.get_running_loop()
    try:
        while part := await loop.run_in_executor(_readers(), read, parts, b""):
            yield part
    except DatabaseError as error:
        raise SourceUnavailable from error  # the connection is dropped: the client must not take this for the end


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(READERS, "report-reader")


def _list_parts(reports: Sequence[Report]) -> Iterator[bytes]:
    for index, report in enumerate(reports):
        yield b"," if index else b"["
        yield from _report_parts(report)
    yield b"]"


def _report_parts(report: Report) -> Iterator[bytes]:
    """Yield the JSON of a report. No part is empty."""
    counts = stored_counts([report]).get(report.pk, ())
    head = orjson.dumps(report_document(report, None, counts) | {"alerts": []})
    yield head[:-1] + b',"results":['
    # Metrics never change, so pages that are read one after the other are of one state.
    keys = list(Metric.objects.filter(report=report).order_by(*ROW_ORDER).values_list("pk", flat=True))
    results = _ResultsEncoder(report.project)
    for begin in range(0, len(keys), PAGE_METRICS):
        page = keys[begin : begin + PAGE_METRICS]
        found = Metric.objects.select_related("benchmark", "measure").in_bulk(page)
        yield results.encode([found[key] for key in page])
    yield results.end() + b"]}"


class _ResultsEncoder:
    """Encodes metrics page by page as the elements of `results`: iterations, their benchmarks, their measures."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._last: tuple[int, int] | None = None  # iteration and benchmark of the last metric

    def encode(self, metrics: Sequence[Metric]) -> bytes:
        """Return the JSON of further metrics, which are ordered by iteration and benchmark."""
        parts: list[bytes] = []
        for metric in metrics:
            here = (metric.iteration, metric.benchmark_id)
            if here == self._last:
                parts.append(b",")
            else:
                parts += [self._separator(metric.iteration), b'{"iteration":%d,"benchmark":' % metric.iteration]
                parts += [orjson.dumps(resource_document(metric.benchmark, self._project)), b',"measures":[']
            parts.append(orjson.dumps(measured_document(metric, self._project)))
            self._last = here
        return b"".join(parts)

    def end(self) -> bytes:
        """Return the end of the last benchmark and the last iteration."""
        return b"]}]" if self._last else b""

    def _separator(self, iteration: int) -> bytes:
        if self._last is None:
            return b"["
        return b"]}," if iteration == self._last[0] else b"]}],["
