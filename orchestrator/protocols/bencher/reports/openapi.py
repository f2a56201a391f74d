"""OpenAPI of the operations on reports, testbeds and metrics."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.openapi import LIST_PARAMETERS, PAGE_PARAMETERS, query, resource_id
from orchestrator.protocols.bencher.reports.serializers import (
    MetricDocument,
    NewTestbedInput,
    PerfDocument,
    ReportDocument,
    TestbedChangeInput,
    TestbedDocument,
)

PROJECT_ID: Final = resource_id("project")
TESTBED_ID: Final = resource_id("testbed")


def _uuid(name: str) -> OpenApiParameter:
    return OpenApiParameter(name, {"type": "string", "format": "uuid"}, "path", required=True)


def _uuids(name: str) -> OpenApiParameter:
    uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    schema = {"type": "string", "pattern": f"^{uuid}(,{uuid})*$"}
    return OpenApiParameter(name, schema, "query", required=True, description="UUIDs, separated by commas.")


def _time(name: str, description: str) -> OpenApiParameter:
    limits: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 253402300799999}
    return query(name, f"{description}, in milliseconds since 1970.", **limits)


LIST_REPORTS_DOCS = operation_docs(
    "list_reports",
    responses=ReportDocument(many=True),
    parameters=[
        PROJECT_ID,
        query("sort", enum=["date_time"], default="date_time"),
        *PAGE_PARAMETERS,
        query("branch", "UUID, slug or name."),
        query("testbed", "UUID, slug or name."),
        _time("start_time", "Reports that began at this time or later"),
        _time("end_time", "Reports that ended at this time or earlier"),
        query("archived", "True: only those of an archived branch or testbed.", type="boolean", default=False),
        query("expand", "True: with results and alerts.", type="boolean", default=False),
    ],
    codes=("not_found",),
)
GET_REPORT_DOCS = operation_docs(
    "get_report", responses=ReportDocument, parameters=[PROJECT_ID, _uuid("report")], codes=("not_found",)
)
DELETE_REPORT_DOCS = operation_docs(
    "delete_report", request=None, responses={204: None}, parameters=[PROJECT_ID, _uuid("report")], codes=("not_found",)
)
LIST_TESTBEDS_DOCS = operation_docs(
    "list_testbeds",
    responses=TestbedDocument(many=True),
    parameters=[PROJECT_ID, *LIST_PARAMETERS],
    codes=("not_found",),
)
CREATE_TESTBED_DOCS = operation_docs(
    "create_testbed",
    request=NewTestbedInput,
    responses={201: TestbedDocument},
    parameters=[PROJECT_ID],
    codes=("not_found", "conflict"),
)
GET_TESTBED_DOCS = operation_docs(
    "get_testbed",
    responses=TestbedDocument,
    parameters=[PROJECT_ID, TESTBED_ID, query("spec", "UUID of the hardware spec to return.", format="uuid")],
    codes=("not_found",),
)
CHANGE_TESTBED_DOCS = operation_docs(
    "change_testbed",
    request=TestbedChangeInput,
    responses=TestbedDocument,
    parameters=[PROJECT_ID, TESTBED_ID],
    codes=("not_found", "conflict"),
)
DELETE_TESTBED_DOCS = operation_docs(
    "delete_testbed",
    request=None,
    responses={204: None},
    parameters=[PROJECT_ID, TESTBED_ID],
    codes=("not_found", "conflict"),
)
GET_PERF_DOCS = operation_docs(
    "get_perf",
    responses=PerfDocument,
    parameters=[
        PROJECT_ID,
        *(_uuids(name) for name in ("branches", "testbeds", "benchmarks", "measures")),
        query("heads", "For each branch a UUID, or nothing; separated by commas."),
        query("specs", "For each testbed the UUID of a hardware spec, or nothing; separated by commas."),
        _time("start_time", "Reports that began at this time or later"),
        _time("end_time", "Reports that ended at this time or earlier"),
    ],
    codes=("not_found",),
)
GET_METRIC_DOCS = operation_docs(
    "get_metric", responses=MetricDocument, parameters=[PROJECT_ID, _uuid("metric")], codes=("not_found",)
)
