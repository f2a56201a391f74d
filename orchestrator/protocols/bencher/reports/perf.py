"""The history of metrics: `/v0/projects/{project}/perf`.

A series is one branch, testbed, benchmark and measure. The request names lists of each; every combination is a series.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce

from orchestrator.protocols.bencher.errors import bad_request
from orchestrator.protocols.bencher.reports.wire import (
    branch_document,
    measure_document,
    metric_value_document,
    project_document,
    resource_document,
    testbed_document,
)
from orchestrator.protocols.bencher.resource_ids import parse_uuid
from orchestrator.protocols.bencher.wire import optional_timestamp, timestamp
from orchestrator.results.models import Metric
from runtime_jobs.models import Project

MAX_SERIES = 255
MAX_POINTS = 65_535  # metrics of all series in one response
RELATED = ("benchmark", "measure", "report__branch", "report__testbed__spec", "report__spec")


@dataclass(frozen=True)
class PerfQuery:
    """The series of a request.

    Attributes:
        branches: The branches.
        heads: For each branch the id of its head, or None for any.
        testbeds: The testbeds.
        specs: For each testbed the hardware spec of the reports, or None for any.
        benchmarks: The benchmarks.
        measures: The measures.
        start: The first time that counts, or None.
        end: The last time that counts, or None.
    """

    branches: list[UUID]
    heads: list[UUID | None]
    testbeds: list[UUID]
    specs: list[UUID | None]
    benchmarks: list[UUID]
    measures: list[UUID]
    start: datetime | None
    end: datetime | None


def parse_uuids(text: str | None, name: str) -> list[UUID]:
    """Return the UUIDs of a parameter that separates them by commas.

    Raises:
        ApiError: 400; the parameter is absent, or a part is no UUID.
    """
    found = [parse_uuid(part) for part in (text or "").split(",")]
    uuids = [uuid for uuid in found if uuid is not None]
    if len(uuids) < len(found):
        raise bad_request(f"{name}: Must be UUIDs, separated by commas.")
    return uuids


def parse_parallel_uuids(text: str | None, name: str, length: int) -> list[UUID | None]:
    """Return the UUIDs of a parameter that belongs to another one; a part may be empty, and the end may be absent.

    Raises:
        ApiError: 400; a part is no UUID, or there are too many.
    """
    parts = text.split(",") if text else []
    found = [parse_uuid(part) if part else None for part in parts]
    if len(found) > length or any(part and uuid is None for part, uuid in zip(parts, found, strict=True)):
        raise bad_request(f"{name}: Must be at most {length} UUIDs or empty parts, separated by commas.")
    return found + [None] * (length - len(found))


def perf_document(project: Project, query: PerfQuery) -> dict[str, Any]:
    """Return the series that have metrics, each in the order of time and iteration.

    Raises:
        ApiError: 400; the request has too many series, or they have too many metrics.
    """
    pairs = list(product(zip(query.branches, query.heads, strict=True), zip(query.testbeds, query.specs, strict=True)))
    if len(pairs) * len(query.benchmarks) * len(query.measures) > MAX_SERIES:
        raise bad_request(f"branches, testbeds, benchmarks, measures: At most {MAX_SERIES} combinations are allowed.")
    results: list[dict[str, Any]] = []
    left = MAX_POINTS
    for (branch, head), (testbed, spec) in pairs:
        if head not in {None, branch}:  # a branch has one head, with its own id
            continue
        rows = list(_rows(project, query, branch, testbed, spec)[: left + 1])
        left -= len(rows)
        if left < 0:
            raise bad_request(f"These series have more than {MAX_POINTS} metrics. Narrow `start_time` and `end_time`.")
        results += _series(project, rows, has_spec=spec is not None)
    return {
        "project": project_document(project),
        "start_time": optional_timestamp(query.start),
        "end_time": optional_timestamp(query.end),
        "results": results,
    }


def _rows(project: Project, query: PerfQuery, branch: UUID, testbed: UUID, spec: UUID | None) -> QuerySet[Metric]:
    rows = Metric.objects.select_related(*RELATED).annotate(
        began_at=Coalesce("report__result__start_time", "report__start_time"),
        ended_at=Coalesce("report__result__end_time", "report__end_time"),
    )
    wanted = Q(report__project=project, report__branch__uuid=branch, report__testbed__uuid=testbed)
    wanted &= Q(benchmark__uuid__in=query.benchmarks, measure__uuid__in=query.measures)
    if spec is not None:
        wanted &= Q(report__spec__uuid=spec)
    if query.start is not None:
        wanted &= Q(began_at__gte=query.start)
    if query.end is not None:
        wanted &= Q(ended_at__lte=query.end)
    # By id last: the metrics of one iteration have one time, and their order is that of the series in the response.
    return rows.filter(wanted).order_by("began_at", "report_id", "iteration", "id")


def _series(project: Project, rows: list[Metric], *, has_spec: bool) -> list[dict[str, Any]]:
    by_names: dict[tuple[int, int], list[Metric]] = defaultdict(list)
    for metric in rows:
        by_names[metric.benchmark_id, metric.measure_id].append(metric)
    return [_one_series(project, same, has_spec=has_spec) for same in by_names.values()]


def _one_series(project: Project, metrics: list[Metric], *, has_spec: bool) -> dict[str, Any]:
    first = metrics[0]
    report = first.report
    return {
        "branch": branch_document(report.branch, project),
        "testbed": testbed_document(report.testbed, project, report.spec if has_spec else None),
        "benchmark": resource_document(first.benchmark, project),
        "measure": measure_document(first.measure, project),
        "metrics": [_point(metric) for metric in metrics],
    }


def _point(metric: Any) -> dict[str, Any]:
    return {
        "report": str(metric.report.uuid),
        "iteration": metric.iteration,
        "start_time": timestamp(metric.began_at),
        "end_time": timestamp(metric.ended_at),
        "version": {"number": 0, "hash": metric.report.git_hash or None},
        "metric": metric_value_document(metric),
        "threshold": None,
        "boundary": None,
        "alert": None,
    }
