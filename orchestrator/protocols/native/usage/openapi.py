"""OpenAPI of the operations on usage records."""

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native.openapi import response_example
from orchestrator.protocols.native.usage import serializers

LIST_USAGE = operation_docs(
    "list_usage",
    responses=serializers.UsageRecordOutput(many=True),
    examples=[
        response_example(
            "second minute of a job",
            {
                "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
                "org_slug": "sandtrace",
                "project_slug": "web",
                "job_type": "steps",
                "minute": 2,
                "minutes": 1,
                "started_at": "2026-03-17T20:03:20Z",
                "billed_until": "2026-03-17T20:04:21Z",
                "recorded_at": "2026-03-17T20:04:21Z",
            },
        )
    ],
    codes=(),
)
