"""JSON of reports, testbeds and metrics, as Bencher's command line reads them.

Only the functions in the first part run queries.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from django.db.models import Count

from orchestrator.protocols.bencher.specs.wire import spec_document
from orchestrator.protocols.bencher.wire import optional_timestamp, timestamp
from orchestrator.results.models import Branch, Measure, Metric, ProjectResource, Report, Testbed
from orchestrator.services.tenants import claimed_at
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Project
from workers.models import HardwareSpec

NO_ALERTS = {"total": 0, "active": 0}


def serialize_report(report: Report) -> dict[str, Any]:
    """Return a report with its results. Three queries at least: related rows that are missing are read, too."""
    metrics = metrics_of(report)
    return report_document(report, metrics, counts_of(metrics))


def metrics_of(report: Report) -> list[Metric]:
    """Return the metrics of a report with benchmark and measure, ordered by iteration and benchmark.

    Metrics of one benchmark share its object: 50,000 iterations of one benchmark have one of it, not 50,000.
    """
    rows = Metric.objects.filter(report=report).prefetch_related("benchmark", "measure")
    return list(rows.order_by("iteration", "benchmark__name", "benchmark_id", "measure__name"))


def stored_counts(reports: Iterable[Report]) -> dict[int, list[dict[str, int]]]:
    """Return what `counts_of` returns, for many reports by their keys, without reading their metrics."""
    rows = Metric.objects.filter(report__in=[report.pk for report in reports]).values("report_id", "iteration")
    counted = rows.annotate(
        benchmarks=Count("benchmark", distinct=True), measures=Count("measure", distinct=True)
    ).order_by("report_id", "iteration")
    found: dict[int, list[dict[str, int]]] = defaultdict(list)
    for row in counted:
        found[row["report_id"]].append({"benchmarks": row["benchmarks"], "measures": row["measures"]})
    return found


def report_document(
    report: Report,
    metrics: Sequence[Metric] | None,
    counts: Iterable[dict[str, int]],
    *,
    project: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a report.

    Args:
        report: The report with project, organization, branch, testbed, spec and result.
        metrics: The metrics with benchmark and measure, ordered by iteration and benchmark. None leaves them out.
        counts: For each iteration the number of its `benchmarks` and `measures`.
        project: The project as `project_document` returns it, which may need queries; by default that of the report.
    """
    result = getattr(report, "result", None)
    start = result.start_time if result and result.start_time else report.start_time
    end = result.end_time if result and result.end_time else report.end_time
    document: dict[str, Any] = {
        "uuid": str(report.uuid),
        "user": None,
        "project": project or project_document(report.project),
        "branch": branch_document(report.branch, report.project, report.git_hash),
        "testbed": testbed_document(report.testbed, report.project, report.spec),
        "start_time": timestamp(start),
        "end_time": timestamp(end),
        "adapter": report.adapter,
        "counts": {"results": list(counts), "alerts": NO_ALERTS},
        "created": timestamp(report.created_at),
    }
    if metrics is not None:
        document |= {"results": _iterations(metrics, report.project), "alerts": []}
    if report.job_id is not None:
        document["job"] = str(uuid_of(report.job_id))
    return document


def counts_of(metrics: Sequence[Metric]) -> list[dict[str, int]]:
    """Return for each iteration the number of its benchmarks and measures."""
    return [
        {
            "benchmarks": len({metric.benchmark_id for metric in same}),
            "measures": len({metric.measure_id for metric in same}),
        }
        for same in (list(group) for _, group in groupby(metrics, key=_iteration))
    ]


def metric_document(metric: Metric) -> dict[str, Any]:
    """Return one metric with its report, branch, testbed, benchmark and measure."""
    report, project = metric.report, metric.report.project
    outer = report_document(report, None, ())
    return {
        "uuid": str(metric.uuid),
        "report": str(report.uuid),
        "iteration": metric.iteration,
        "start_time": outer["start_time"],
        "end_time": outer["end_time"],
        "branch": outer["branch"],
        "testbed": outer["testbed"],
        "benchmark": resource_document(metric.benchmark, project),
        "measure": measure_document(metric.measure, project),
        "metric": metric_value_document(metric),
        "threshold": None,
        "boundary": None,
        "alert": None,
    }


def project_document(project: Project) -> dict[str, Any]:
    """Return a project. `claimed` is since when its organization has an owner, or null."""
    created = timestamp(project.created_at)
    return {
        "uuid": str(project.uuid),
        "organization": str(project.organization.uuid),
        "name": project.slug,
        "slug": project.public_slug,
        "url": None,
        "visibility": project.visibility,
        "created": created,
        "modified": created,
        "claimed": optional_timestamp(claimed_at(project.organization)),
    }


def branch_document(branch: Branch, project: Project, git_hash: str = "") -> dict[str, Any]:
    """Return a branch. It has one head with the id of the branch, and no start point."""
    version = {"number": 0, "hash": git_hash} if git_hash else None
    head = {
        "uuid": str(branch.uuid),
        "start_point": None,
        "version": version,
        "created": timestamp(branch.created_at),
        "replaced": None,
    }
    return resource_document(branch, project) | {"head": head}


def testbed_document(testbed: Testbed, project: Project, spec: HardwareSpec | None) -> dict[str, Any]:
    """Return a testbed with this hardware spec: its own, or that of a report."""
    return resource_document(testbed, project) | {"spec": None if spec is None else spec_document(spec)}


def resource_document(resource: ProjectResource, project: Project) -> dict[str, Any]:
    """Return what all named resources of a project have."""
    return {
        "uuid": str(resource.uuid),
        "project": str(project.uuid),
        "name": resource.name,
        "slug": resource.slug,
        "created": timestamp(resource.created_at),
        "modified": timestamp(resource.modified_at),
        "archived": optional_timestamp(resource.archived_at),
    }


def _iterations(metrics: Sequence[Metric], project: Project) -> list[list[dict[str, Any]]]:
    """Return the results: a list for each iteration, of its benchmarks with their measures.

    Each benchmark and each measure is one object, however many metrics have it.
    """
    benchmarks = {metric.benchmark_id: metric.benchmark for metric in metrics}
    measures = {metric.measure_id: metric.measure for metric in metrics}
    benchmark_documents = {key: resource_document(benchmark, project) for key, benchmark in benchmarks.items()}
    measure_documents = {key: measure_document(measure, project) for key, measure in measures.items()}
    return [
        [
            {
                "iteration": iteration,
                "benchmark": benchmark_documents[key],
                "measures": [_measured(metric, measure_documents[metric.measure_id]) for metric in same],
            }
            for key, same in groupby(of_iteration, key=lambda metric: metric.benchmark_id)
        ]
        for iteration, of_iteration in groupby(metrics, key=_iteration)
    ]


def measured_document(metric: Metric, project: Project) -> dict[str, Any]:
    """Return a metric with its measure, as the results of a report have it."""
    return _measured(metric, measure_document(metric.measure, project))


def _measured(metric: Metric, measure: dict[str, Any]) -> dict[str, Any]:
    return {"measure": measure, "metric": metric_value_document(metric), "threshold": None, "boundary": None}


def measure_document(measure: Measure, project: Project) -> dict[str, Any]:
    """Return a measure with its unit."""
    return resource_document(measure, project) | {"units": measure.units}


def metric_value_document(metric: Metric) -> dict[str, Any]:
    """Return the value of a metric, and the ends of its interval."""
    return {
        "uuid": str(metric.uuid),
        "value": metric.value,
        "lower_value": metric.lower_value,
        "upper_value": metric.upper_value,
    }


def _iteration(metric: Metric) -> int:
    return metric.iteration
