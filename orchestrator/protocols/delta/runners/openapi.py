"""OpenAPI of the messages of runners: ids, bodies, headers, examples and error codes."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import idempotency_key, idempotency_replayed, request_example, response_example
from orchestrator.protocols.delta.runners import serializers

# --- examples ---------------------------------------------------------------------------------------------------------

_JOB_ID = "rtj_01kkygkagq0jk17bx6y1w8c3df"
_LEASE_ID = "rtl_01kkygn4z3fkef0g4tgm6g3b1j"
_MESSAGE_FIELDS = {"lease_id": _LEASE_ID, "runner_id": "runner-7"}
_LOG_ARTIFACT = {"type": "log", "uri": "s3://artifacts/runs/1/jobs/1/log.txt"}


LEASE_GRANTED = response_example(
    "job for the runner",
    {
        "type": "LeaseGranted",
        "run_id": "rtb_01kkygk9z3s4mm0t6qj3v9p1xw",
        "job_id": _JOB_ID,
        "attempt_id": _JOB_ID,
        "attempt_number": 1,
        "lease_id": _LEASE_ID,
        "lease_ttl_seconds": 120,
        "heartbeat_interval_seconds": 20,
        "max_runtime_seconds": 3600,
        "job_spec": {
            "name": "unit-tests",
            "workdir": ".",
            "steps": ["make test"],
            "env": {"CI": "true"},
            "artifacts": [{"type": "junit", "path_glob": "**/*.xml"}],
            "caches": [{"type": "deps", "key": "go:1f", "paths": ["~/go/pkg/mod"], "read_only": False}],
        },
    },
)
STALE_LEASE = response_example(
    "stale lease",
    {
        "type": "StaleLease",
        "lease_id": _LEASE_ID,
        "reason": "LEASE_EXPIRED",
        "error": {
            "code": "STALE_LEASE",
            "message": "stale lease",
            "lease_id": _LEASE_ID,
            "details": {"reason": "lease_expired", "job_status": "failed"},
        },
    },
    "409",
)

# --- operations -------------------------------------------------------------------------------------------------------

LEASE_DOCS = operation_docs(
    "grant_delta_lease",
    request=serializers.LeaseRequest,
    responses={
        200: serializers.LeaseGranted,
        204: OpenApiResponse(description="No job is available for this runner."),
    },
    parameters=[
        idempotency_key(),
        idempotency_replayed(200),
    ],
    examples=[
        request_example("request for a lease", {"type": "LeaseRequest", "runner_id": "runner-7", "wait_seconds": 20}),
        LEASE_GRANTED,
    ],
    codes=("idempotency_conflict",),
)


def _lease_docs(
    operation_id: str, message: Any, response: Any, *examples: OpenApiExample, codes: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    return operation_docs(
        operation_id,
        request=message,
        responses={200: response},
        examples=[*examples, STALE_LEASE],
        codes=("stale_lease", *codes),
    )


ACK_LEASE_DOCS = _lease_docs(
    "acknowledge_delta_lease",
    serializers.AckLease,
    serializers.LeaseAccepted,
    request_example(
        "acknowledgement",
        {"type": "AckLease", "job_id": _JOB_ID, **_MESSAGE_FIELDS, "accepted_at": "2026-01-04T08:00:00Z"},
    ),
    response_example(
        "acknowledged lease",
        {
            "type": "LeaseAccepted",
            "lease_id": _LEASE_ID,
            "job_id": _JOB_ID,
            "heartbeat_interval_seconds": 20,
            "max_runtime_seconds": 3600,
        },
    ),
)
HEARTBEAT_DOCS = _lease_docs(
    "renew_delta_lease",
    serializers.RunnerHeartbeat,
    serializers.HeartbeatAck,
    request_example(
        "running job",
        {
            "type": "Heartbeat",
            **_MESSAGE_FIELDS,
            "progress": {"percent": 35, "current_step": "make test", "step_index": 0, "message": "Running tests"},
            "log_cursor": {"bytes_sent": 1048576},
            "ts": "2026-01-04T08:00:20Z",
        },
    ),
    response_example(
        "cancel requested",
        {
            "type": "HeartbeatAck",
            "lease_id": _LEASE_ID,
            "extend_lease": True,
            "new_lease_ttl_seconds": 120,
            "cancel_requested": True,
            "cancel_deadline_seconds": 22,
            "cancel_reason": "RUN_CANCELED",
        },
    ),
)
COMPLETE_DOCS = _lease_docs(
    "complete_delta_lease",
    serializers.RunnerComplete,
    serializers.CompleteAck,
    request_example(
        "succeeded job",
        {
            "type": "Complete",
            **_MESSAGE_FIELDS,
            "status": "SUCCEEDED",
            "exit_code": 0,
            "timings": {"started_at": "2026-01-04T08:00:05Z", "finished_at": "2026-01-04T08:03:12Z"},
            "artifacts": [_LOG_ARTIFACT],
            "summary": "All tests passed.",
        },
    ),
    response_example("accepted result", {"type": "CompleteAck", "lease_id": _LEASE_ID, "accepted": True}),
)
CANCEL_ACK_DOCS = _lease_docs(
    "acknowledge_delta_cancel",
    serializers.CancelAck,
    serializers.CancelFinalized,
    request_example(
        "stopped job",
        {
            "type": "CancelAck",
            **_MESSAGE_FIELDS,
            "final_status": "CANCELED",
            "ts": "2026-01-04T08:01:25Z",
            "artifacts": [_LOG_ARTIFACT],
            "summary": "Canceled during step: make test.",
        },
    ),
    response_example(
        "canceled job",
        {"type": "CancelFinalized", "lease_id": _LEASE_ID, "job_id": _JOB_ID, "final_status": "CANCELED"},
    ),
    codes=("cancel_not_requested",),
)
