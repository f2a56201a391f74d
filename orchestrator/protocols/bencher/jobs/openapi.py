"""OpenAPI of the operations on the jobs of a project."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiExample, OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.jobs.serializers import ProjectJobChangeInput, ProjectJobDocument
from orchestrator.protocols.bencher.openapi import PAGE_PARAMETERS, query, resource_id
from orchestrator.protocols.bencher.specs.openapi import SPEC_EXAMPLE
from orchestrator.protocols.bencher.states import BencherStatus

PROJECT_ID: Final = resource_id("project")
JOB_ID: Final = OpenApiParameter("job", {"type": "string", "format": "uuid"}, "path", required=True)
_JOB: Final[dict[str, Any]] = {
    "uuid": "019a2b1c-0000-7000-8000-000000000002",
    "job_id": "rtj_01k8nhr0007000g00000000002",
    "status": "processed",
    "spec": SPEC_EXAMPLE,
    "runner": "019a2b1c-0000-7000-8000-000000000003",
    "claimed": "2026-01-01T00:00:01Z",
    "started": "2026-01-01T00:00:02Z",
    "completed": "2026-01-01T00:01:02Z",
    "created": "2026-01-01T00:00:00Z",
    "modified": "2026-01-01T00:01:02Z",
}

LIST_PROJECT_JOBS_DOCS = operation_docs(
    "list_project_jobs",
    responses=ProjectJobDocument(many=True),
    parameters=[
        PROJECT_ID,
        query("sort", enum=["created"], default="created"),
        *PAGE_PARAMETERS,
        query("status", enum=[str(status) for status in BencherStatus]),
    ],
    examples=[OpenApiExample("processed job", _JOB, response_only=True)],
    codes=("not_found",),
)
GET_PROJECT_JOB_DOCS = operation_docs(
    "get_project_job",
    responses=ProjectJobDocument,
    parameters=[PROJECT_ID, JOB_ID],
    examples=[
        OpenApiExample(
            "job with its output",
            _JOB | {"output": {"results": [{"exit_code": 0, "stdout": "12.5 ns"}]}},
            response_only=True,
        )
    ],
    codes=("not_found",),
)
CANCEL_PROJECT_JOB_DOCS = operation_docs(
    "cancel_project_job",
    request=ProjectJobChangeInput,
    responses=ProjectJobDocument,
    parameters=[PROJECT_ID, JOB_ID],
    examples=[OpenApiExample("canceled job", _JOB | {"status": "canceled"}, response_only=True)],
    codes=("not_found", "already_final"),
)
