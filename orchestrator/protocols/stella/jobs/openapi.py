"""OpenAPI of the operations on jobs."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import (
    idempotency_key,
    idempotency_replayed,
    location,
    request_example,
    response_example,
)
from orchestrator.protocols.stella.jobs import serializers
from orchestrator.protocols.stella.openapi import PATH

JOB_ID = OpenApiParameter("job_id", {"type": "string", "format": "uuid"}, PATH, required=True)
_KEY = idempotency_key(
    "The same as `idempotencyKey`. A repeated request returns the first job, another request is 409."
)
_LOCATION = location("Path of the job.")
_REPLAYED = idempotency_replayed(description="Present if an earlier request with the same key has created the job.")

# --- examples ---------------------------------------------------------------------------------------------------------

_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
_DEPENDENCY = "01890a5d-ac96-774b-bcce-b302099a8058"
_REQUEST: dict[str, Any] = {
    "payload": {"imageRef": "nginx:latest", "options": {}},
    "cursors": {"advisory": "cursor-abc"},
    "timeoutSeconds": 900,
    "idempotencyKey": "unique-request-key",
}
_DIGEST = "sha256:9c8de5ca3c3f8cc5f9bb3bb0e5be1ba1ecbf0ae1a4ea12ed4f9d9ec0ff1c2b6e"
_JOB: dict[str, Any] = {
    "jobId": _ID,
    "jobType": "scan",
    "tenant": "acme-corp",
    "project": "web",
    "status": "queued",
    "nextEligibleAt": None,
    "priority": "normal",
    "payloadDigest": _DIGEST,
    "correlationId": "trace-id",
    "replayOf": None,
    "requestedBy": "auditor@example.com",
    "requestedAt": "2025-11-29T12:00:00Z",
    "attempt": 1,
    "cancelRequested": False,
    "createdAt": "2025-11-29T12:00:01Z",
    "startedAt": None,
    "completedAt": None,
}
_DETAILS: dict[str, Any] = {
    "pendingReason": {
        "code": "behind",
        "message": "2 jobs are ahead of it in the pool shared-linux.",
        "details": {"pool": "shared-linux", "workersAlive": 2, "position": 3},
    },
    "queuePosition": 3,
    "progress": None,
    "result": None,
    "failure": None,
    "incident": None,
    "attempts": [
        {
            "attempt": 1,
            "attemptId": _ID,
            "status": "queued",
            "workerId": None,
            "failure": None,
            "createdAt": _JOB["createdAt"],
            "startedAt": None,
            "completedAt": None,
        }
    ],
    "dependencies": [_DEPENDENCY],
    "dependents": [],
    "replays": [],
}
_SUBMIT = request_example(
    "scan of an image",
    {
        "jobType": "scan",
        "priority": "normal",
        "payload": _REQUEST["payload"],
        "cursors": _REQUEST["cursors"],
        "dependencies": [_DEPENDENCY],
        "idempotencyKey": _REQUEST["idempotencyKey"],
        "correlationId": "trace-id",
        "requestedBy": _JOB["requestedBy"],
        "requestedAt": _JOB["requestedAt"],
    },
)
_NODE = {
    "jobId": _DEPENDENCY,
    "jobType": "advisory-sync",
    "status": "completed",
    "attempt": 1,
    "seconds": 12.5,
    "createdAt": "2025-11-29T11:59:00Z",
    "startedAt": "2025-11-29T11:59:01Z",
    "completedAt": "2025-11-29T11:59:13.500Z",
}
_GRAPH = {
    "jobId": _ID,
    "nodes": [_NODE],
    "edges": [{"from": _DEPENDENCY, "to": _ID, "needsSuccess": True}],
    "criticalPath": {"jobIds": [_DEPENDENCY], "seconds": 12.5},
    "truncated": False,
}

# --- operations -------------------------------------------------------------------------------------------------------

_ENVELOPE = {
    "payload": "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEifQ==",
    "payloadType": "application/vnd.in-toto+json",
    "signatures": [
        {
            "keyid": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "sig": "c2lnbmF0dXJlLW9mLTY0LWJ5dGVz",
        },
        {"keyid": "", "sig": "c2lnbmF0dXJlLW9mLTY0LWJ5dGVz"},
    ],
}

LIST_JOBS = operation_docs(
    "list_orchestration_jobs",
    responses=serializers.OrchestrationJobOutput(many=True),
    examples=[response_example("waiting job", _JOB)],
    codes=("not_found",),
)
SUBMIT_JOB = operation_docs(
    "submit_orchestration_job",
    request=serializers.SubmitOrchestrationJobInput,
    responses={201: serializers.SubmittedOrchestrationJobOutput},
    parameters=[_KEY, _LOCATION, _REPLAYED],
    examples=[_SUBMIT, response_example("new job", _JOB | _REQUEST, "201")],
    codes=(
        *("not_found", "project_not_enabled", "pool_forbidden", "priority_forbidden", "timeout_above_plan"),
        *("invalid_dependency", "digest_mismatch", "conflict", "idempotency_conflict"),
        *("queue_full", "submit_rate_exceeded"),
    ),
)
GET_JOB = operation_docs(
    "get_orchestration_job",
    responses=serializers.OrchestrationJobDetailOutput,
    parameters=[JOB_ID],
    examples=[response_example("waiting job", _JOB | _REQUEST | _DETAILS)],
    codes=("not_found",),
)
CANCEL_JOB = operation_docs(
    "cancel_orchestration_job",
    request=serializers.CancelOrchestrationJobInput,
    responses={
        200: OpenApiResponse(serializers.OrchestrationJobOutput, description="The job is canceled, now or earlier."),
        202: OpenApiResponse(
            serializers.OrchestrationJobOutput, description="The worker receives the request with its next heartbeat."
        ),
    },
    parameters=[JOB_ID],
    examples=[request_example("with a reason", {"reason": "superseded by a newer image"})],
    codes=("not_found", "already_final"),
)
GET_GRAPH = operation_docs(
    "get_orchestration_job_graph",
    responses=serializers.JobGraphOutput,
    parameters=[JOB_ID],
    examples=[response_example("a job that waits for another one", _GRAPH)],
    codes=("not_found",),
)
GET_ATTESTATION = operation_docs(
    "get_orchestration_job_attestation",
    responses=serializers.EnvelopeOutput,
    parameters=[JOB_ID],
    examples=[response_example("provenance of a job", _ENVELOPE)],
    codes=("not_found", "not_final", "signing_unavailable"),
)
