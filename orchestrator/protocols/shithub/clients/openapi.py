"""OpenAPI of the calls of users."""

from typing import Final

from drf_spectacular.utils import OpenApiExample

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.shithub.clients.serializers import CancelDocument, RerunDocument
from orchestrator.protocols.shithub.jobs.openapi import JOB_ID, key_parameter

_RERUN: Final = {
    "run_id": 21,
    "run_index": 2,
    "parent_run_id": 20,
    "repo_id": 30,
    "workflow_file": ".shithub/workflows/ci.yml",
    "head_sha": "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf",
}

CANCEL_DOCS: Final = operation_docs(
    "cancel_workflow_job",
    request=None,
    responses={202: CancelDocument},
    parameters=[JOB_ID],
    codes=("not_found",),
)
RERUN_DOCS: Final = operation_docs(
    "rerun_run_of_workflow",
    request=None,
    responses={201: RerunDocument},
    examples=[OpenApiExample("new run", _RERUN, response_only=True, status_codes=["201"])],
    parameters=[key_parameter("run_id")],
    codes=("not_found", "not_final", "conflict", "workflow_rejected"),
)
