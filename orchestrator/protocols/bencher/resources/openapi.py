"""OpenAPI of the operations that read projects, branches, benchmarks and measures."""

from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.openapi import LIST_PARAMETERS, PAGE_PARAMETERS, query, resource_id
from orchestrator.protocols.bencher.reports import serializers

_PROJECT = resource_id("project")
_PROJECT_FILTERS = [
    query("sort", enum=["name", "created"], default="name"),
    *PAGE_PARAMETERS,
    query("name", "The exact name."),
    query("search", "A part of name, slug or UUID."),
]

LIST_PROJECTS_DOCS = operation_docs(
    "list_projects", responses=serializers.ProjectDocument(many=True), parameters=_PROJECT_FILTERS
)
LIST_ORGANIZATION_PROJECTS_DOCS = operation_docs(
    "list_organization_projects",
    responses=serializers.ProjectDocument(many=True),
    parameters=[resource_id("organization"), *_PROJECT_FILTERS],
    codes=("not_found",),
)
GET_PROJECT_DOCS = operation_docs(
    "get_project", responses=serializers.ProjectDocument, parameters=[_PROJECT], codes=("not_found",)
)


def _list_docs(name: str, document: Any) -> Any:
    return operation_docs(
        name, responses=document(many=True), parameters=[_PROJECT, *LIST_PARAMETERS], codes=("not_found",)
    )


def _detail_docs(name: str, document: Any) -> Any:
    return operation_docs(
        f"get_{name}", responses=document, parameters=[_PROJECT, resource_id(name)], codes=("not_found",)
    )


LIST_BRANCHES_DOCS = _list_docs("list_branches", serializers.BranchDocument)
GET_BRANCH_DOCS = _detail_docs("branch", serializers.BranchDocument)
LIST_BENCHMARKS_DOCS = _list_docs("list_benchmarks", serializers.BenchmarkDocument)
GET_BENCHMARK_DOCS = _detail_docs("benchmark", serializers.BenchmarkDocument)
LIST_MEASURES_DOCS = _list_docs("list_measures", serializers.MeasureDocument)
GET_MEASURE_DOCS = _detail_docs("measure", serializers.MeasureDocument)
