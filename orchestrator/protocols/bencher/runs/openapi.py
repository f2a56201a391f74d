"""OpenAPI of `POST /v0/run`."""

from drf_spectacular.utils import OpenApiExample

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.reports.serializers import ReportDocument
from orchestrator.protocols.bencher.runs.serializers import RunInput

_DIGEST = f"sha256:{'0123456789abcdef' * 4}"
_TIMES = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:01:00Z"}

CREATE_RUN_DOCS = operation_docs(
    "create_run",
    request=RunInput,
    responses={201: ReportDocument},
    examples=[
        OpenApiExample(
            "run with a job",
            {
                "project": "adapter",
                "branch": "main",
                **_TIMES,
                "results": [],
                "job": {"image": f"adapter@{_DIGEST}", "spec": "two-cores", "timeout": 300},
            },
            request_only=True,
        ),
        OpenApiExample(
            "run with a job, as document 002 has it",
            {"project": "adapter", "branch": "main", "image": _DIGEST, "spec": "two-cores"},
            request_only=True,
        ),
        OpenApiExample(
            "run with results",
            {
                "project": "adapter",
                "branch": "main",
                "testbed": "localhost",
                **_TIMES,
                "results": ['{"fibonacci": {"latency": {"value": 12.5}}}'],
                "settings": {"adapter": "json"},
            },
            request_only=True,
        ),
    ],
    codes=(
        *("not_found", "project_not_enabled", "pool_forbidden", "timeout_above_plan"),
        *("queue_full", "submit_rate_exceeded", "rate_limited"),
    ),
)
