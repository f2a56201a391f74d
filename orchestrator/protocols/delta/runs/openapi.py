"""OpenAPI of the operations on runs: ids, bodies, headers, examples and error codes."""

from drf_spectacular.utils import OpenApiExample, OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import (
    idempotency_key,
    idempotency_replayed,
    location,
    path_parameter,
    response_example,
)
from orchestrator.protocols.delta.runs import serializers
from runtime_jobs.identifiers import ULID_PATTERN

LOCATION = location("Path of the run.", 201, 200)
REPLAYED = idempotency_replayed(200, required=True)
RUN_ID = path_parameter("batch_id", f"rtb_{ULID_PATTERN}")
ADMISSION_CODES = (
    *("feature_not_enabled", "project_not_enabled", "repository_not_allowed", "pool_forbidden"),
    *("timeout_above_plan", "idempotency_conflict", "queue_full", "submit_rate_exceeded"),
)

# --- examples ---------------------------------------------------------------------------------------------------------

_RUN_ID = "rtb_01kkygkagq0jk17bx6y1w8c3df"
_JOB_ID = "rtj_01kkygkagq0jk17bx6y1w8c3df"
_REPOSITORY_FIELDS = {
    "repo_id": "cc-consulting-nv/web",
    "ref": "refs/heads/main",
    "commit_sha": "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf",
}
_TIMES = {"created_at": "2026-01-04T08:00:00Z", "updated_at": "2026-01-04T08:00:00Z"}


_START = OpenApiExample(
    "run of one job",
    request_only=True,
    value={
        **_REPOSITORY_FIELDS,
        "reason": "nightly",
        "jobs": [{"name": "unit-tests", "workdir": ".", "steps": ["make test"], "env": {"CI": "true"}}],
    },
)
_RUN = OpenApiExample(
    "waiting run",
    {
        "run": {"id": _RUN_ID, **_REPOSITORY_FIELDS, "state": "QUEUED", **_TIMES},
        "jobs": [
            {
                "job": {
                    "id": _JOB_ID,
                    "run_id": _RUN_ID,
                    "name": "unit-tests",
                    "required": True,
                    "state": "QUEUED",
                    "attempt_count": 1,
                    **_TIMES,
                },
                "attempts": [{"id": _JOB_ID, "job_id": _JOB_ID, "attempt_number": 1, "state": "QUEUED", **_TIMES}],
                "artifacts": [],
                "failure_explanations": [],
            }
        ],
    },
    response_only=True,
)
_RERUN_FIELDS = {
    "run_id": "rtb_01kkygmfjf4j9s26hzd0h93j0r",
    "original_run": _RUN_ID,
    "state": "QUEUED",
    "created": "true",
    "idempotencyKey": "again-1",
}

# --- operations -------------------------------------------------------------------------------------------------------

_REPLAYED_RUN = "The run that an earlier request with the same key has created."
START_RUN_DOCS = operation_docs(
    "start_delta_run",
    request=serializers.StartRun,
    responses={
        201: serializers.DeltaRunSummary,
        200: OpenApiResponse(serializers.DeltaRunSummary, description=_REPLAYED_RUN),
    },
    parameters=[idempotency_key(), LOCATION, REPLAYED],
    examples=[_START, response_example("new run", {"run_id": _RUN_ID, "state": "QUEUED"}, "201")],
    codes=("not_found", *ADMISSION_CODES),
)
GET_RUN_DOCS = operation_docs(
    "get_delta_run",
    responses=serializers.DeltaRunDetail,
    parameters=[RUN_ID],
    examples=[_RUN],
    codes=("not_found",),
)
CANCEL_RUN_DOCS = operation_docs(
    "cancel_delta_run",
    request=serializers.CancelRun,
    responses={200: serializers.DeltaRunSummary},
    parameters=[RUN_ID],
    examples=[response_example("cancel requested", {"run_id": _RUN_ID, "state": "CANCEL_REQUESTED"}, "200")],
    codes=("not_found", "already_final"),
)
RERUN_DOCS = operation_docs(
    "rerun_delta_run",
    request=serializers.RerunRun,
    responses={
        201: serializers.DeltaRerun,
        200: OpenApiResponse(serializers.DeltaRerun, description=_REPLAYED_RUN),
    },
    parameters=[RUN_ID, idempotency_key(required=True), LOCATION, REPLAYED],
    examples=[response_example("new run", _RERUN_FIELDS, "201")],
    codes=("not_found", *ADMISSION_CODES),
)
