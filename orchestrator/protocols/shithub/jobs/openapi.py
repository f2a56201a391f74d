"""OpenAPI of the calls about a job."""

from typing import Final

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.shithub.jobs.serializers import (
    ArtifactUploadDocument,
    ArtifactUploadInput,
    CancelCheckDocument,
    JobStatusDocument,
    LogDocument,
    LogInput,
    NewChainDocument,
    StatusInput,
    StepStatusDocument,
)


def key_parameter(name: str) -> OpenApiParameter:
    """Return a path parameter that is a whole number."""
    return OpenApiParameter(name, {"type": "integer", "format": "int64", "minimum": 1}, "path", required=True)


JOB_ID: Final = key_parameter("job_id")
STEP_ID: Final = key_parameter("step_id")
_CODES: Final = ("not_found",)

JOB_STATUS_DOCS: Final = operation_docs(
    "report_job_status",
    request=StatusInput,
    responses=JobStatusDocument,
    parameters=[JOB_ID],
    codes=_CODES,
)
STEP_STATUS_DOCS: Final = operation_docs(
    "report_step_status",
    request=StatusInput,
    responses=StepStatusDocument,
    parameters=[JOB_ID, STEP_ID],
    codes=_CODES,
)
LOG_DOCS: Final = operation_docs(
    "append_step_log",
    request=LogInput,
    responses={202: LogDocument},
    parameters=[JOB_ID],
    codes=_CODES,
)
ARTIFACT_DOCS: Final = operation_docs(
    "begin_run_artifact",
    request=ArtifactUploadInput,
    responses={201: ArtifactUploadDocument},
    parameters=[JOB_ID],
    codes=(*_CODES, "conflict", "storage_quota_exceeded"),
)
CANCEL_CHECK_DOCS: Final = operation_docs(
    "check_cancel",
    request=None,
    responses=CancelCheckDocument,
    parameters=[JOB_ID],
    codes=_CODES,
)
TOKEN_DOCS: Final = operation_docs(
    "start_token_chain",
    request=None,
    responses=NewChainDocument,
    parameters=[JOB_ID],
    codes=_CODES,
)
