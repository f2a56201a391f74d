"""OpenAPI of the operations on leases: ids, bodies, headers, examples and error codes."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, PolymorphicProxySerializer
from rest_framework.serializers import Serializer

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import path_parameter
from orchestrator.protocols.native.jobs.openapi import JOB_FIELDS
from orchestrator.protocols.native.leases import serializers
from orchestrator.protocols.native.openapi import (
    IDEMPOTENCY_KEY,
    REPLAYED_CREATED,
    WORKER_SESSION,
    request_example,
    response_example,
)
from orchestrator.protocols.native.serializers import EmptyBody
from runtime_jobs.identifiers import ULID_PATTERN

LEASE_ID = path_parameter("lease_id", f"rtl_{ULID_PATTERN}")

# --- examples ---------------------------------------------------------------------------------------------------------

CLAIM = request_example(
    "claim one job",
    {
        "worker_id": "wrk_01kkygmfjf4j9s26hzd0h93j0r",
        "pool": "shared-linux",
        "capabilities": {"linux": True, "ptrace": True, "namespaces": True},
    },
)
CLAIM_MANY = request_example("claim a job for each free slot", CLAIM.value | {"max_leases": 8})
LEASE = response_example(
    "one lease",
    {
        "lease_id": "rtl_01kkygn4z3fkef0g4tgm6g3b1j",
        "job": {
            **{name: JOB_FIELDS[name] for name in ("job_id", "org_slug", "project_slug", "source", "trigger")},
            "job_type": "runtime",
            "execution": JOB_FIELDS["execution"]
            | {"least_isolation": "namespaces", "egress": ["registry.example.org"], "trace": "full"},
            "attempt": 1,
            "retry_of": None,
            "fence": 1,
            "heartbeat_interval_seconds": 20,
            "lease_ttl_seconds": 120,
            "acknowledge_within_seconds": 30,
        },
        "lease_expires_at": "2026-03-17T20:02:30Z",
    },
    "201",
)
LEASES = response_example("list of leases", {"leases": [LEASE.value]}, "201")
HEARTBEAT = request_example(
    "phase and progress",
    {"phase": "executing", "progress": {"percent": 40, "current_step": "pnpm install", "step_index": 1}},
)
REPORT = request_example("next phase", {"phase": "executing"})
LOG_CHUNK = request_example("first chunk", {"seq": 0, "chunk": "UHJvZ3Jlc3MK"})
_STEP_RESULTS = [
    {
        "index": 0,
        "exit_code": 0,
        "started_at": "2026-03-17T20:00:05Z",
        "finished_at": "2026-03-17T20:01:05Z",
    },
    {
        "index": 1,
        "exit_code": 2,
        "started_at": "2026-03-17T20:01:05Z",
        "finished_at": "2026-03-17T20:03:05Z",
    },
]
COMPLETE_RUNTIME_JOB = request_example(
    "runtime job",
    {
        "result": {
            "status": "uploaded",
            "ingest_run_id": "run_20260317143329_bd39b25f6f31",
            "uploaded_at": "2026-03-17T20:03:20Z",
        }
    },
)
COMPLETE_STEPS_JOB = request_example(
    "steps job",
    {
        "result": {
            "status": "succeeded",
            "exit_code": 0,
            "steps": _STEP_RESULTS[:1],
            "files": [{"type": "junit", "path": "reports/unit.xml", "size_bytes": 1823, "sha256": "3b4c6e0f" * 8}],
        }
    },
)
COMPLETE_AND_CLAIM = request_example(
    "complete and claim the next job", COMPLETE_RUNTIME_JOB.value | {"claim_next": CLAIM.value}
)
FAIL_RUNTIME_JOB = request_example(
    "sandbox did not start",
    {
        "result": {
            "status": "failed",
            "reason": "sandbox_apply_failed",
            "message": "Namespace creation failed: EPERM",
        }
    },
)
FAIL_STEPS_JOB = request_example(
    "second step failed",
    {
        "result": {
            "status": "failed",
            "reason": "command_failed",
            "message": "Step 2 of 2 ended with code 2.",
            "exit_code": 2,
            "steps": _STEP_RESULTS,
        }
    },
)
_STATUS_FIELDS = {"job_id": JOB_FIELDS["job_id"], "status": "running"}
RUNNING = response_example("running job", _STATUS_FIELDS)
UPLOADED = response_example("uploaded job", _STATUS_FIELDS | {"status": "uploaded"})
UPLOADED_AND_LEASED = response_example(
    "uploaded job and the next lease", _STATUS_FIELDS | {"status": "uploaded", "next_lease": LEASE.value}
)
FAILED = response_example("failed job", _STATUS_FIELDS | {"status": "failed"})
CANCELED = response_example("canceled job", _STATUS_FIELDS | {"status": "canceled"})
RELEASED = response_example("queued job", _STATUS_FIELDS | {"status": "queued"})
HEARTBEAT_RESPONSE = response_example(
    "cancel requested",
    _STATUS_FIELDS
    | {
        "lease_expires_at": "2026-03-17T20:04:30Z",
        "cancel_requested": True,
        "cancel_reason": "requested",
        "cancel_deadline_seconds": 21.5,
    },
)
OUTPUT = request_example("one iteration", {"output": "eyJyZXN1bHRzIjpbeyJleGl0X2NvZGUiOjAsInN0ZG91dCI6InsgfSJ9XX0="})
OUTPUT_RESPONSE = response_example("output stored", {"output": "01993d0a-5f1e-7e52-8a4b-5a3c2f0d9e71"})
LOG_CHUNK_RESPONSE = response_example("chunk stored", {"next_seq": 1, "truncated": False})

_LEASE_ID_FIELD = {"lease_id": LEASE.value["lease_id"]}
_STALE_ENTRY = {
    "lease_id": "rtl_01kkygn4z3w8r5d1v0h2c6x9qe",
    "status": 409,
    "error": {
        "type": "urn:runtime-orchestrator:problem:stale_lease",
        "title": "Conflict",
        "status": 409,
        "detail": "The lease is unknown, ended, expired or revoked. Stop the job and claim again.",
        "code": "stale_lease",
        "request_id": "req_01kkygn50a7m3w9k5f2t8x1c4d",
        "reason": "lease_expired",
    },
}


def _batch_request(body: dict[str, Any]) -> OpenApiExample:
    return request_example(
        "two leases", {"leases": [_LEASE_ID_FIELD | body, {"lease_id": _STALE_ENTRY["lease_id"]} | body]}
    )


def _batch_response(single: OpenApiExample) -> OpenApiExample:
    entry = _LEASE_ID_FIELD | {"status": 200, "body": single.value}
    return response_example("one valid and one stale lease", {"results": [entry, _STALE_ENTRY]})


# --- operations -------------------------------------------------------------------------------------------------------

CLAIM_DOCS = operation_docs(
    "claim_runtime_lease",
    request=serializers.ClaimInput,
    responses={
        201: PolymorphicProxySerializer(
            "Claimed", [serializers.LeaseOutput, serializers.LeasesOutput], resource_type_field_name=None, many=False
        ),
        204: OpenApiResponse(description="No job is available for this worker."),
    },
    parameters=[IDEMPOTENCY_KEY, WORKER_SESSION, REPLAYED_CREATED],
    examples=[CLAIM, CLAIM_MANY, LEASE, LEASES],
    codes=("worker_mismatch", "pool_forbidden", "stale_lease", "idempotency_conflict"),
)


def _lease_docs(
    operation_id: str,
    request: type[Serializer],
    *codes: str,
    response: type[Serializer] = serializers.JobStatusOutput,
    examples: tuple[OpenApiExample, ...] = (RUNNING,),
    session: bool = False,
) -> Callable[[Any], Any]:
    """Document a message about one lease."""
    return operation_docs(
        operation_id,
        request=request,
        responses={200: response},
        parameters=[LEASE_ID, WORKER_SESSION] if session else [LEASE_ID],
        examples=list(examples),
        codes=("not_found", "stale_lease", *codes),
    )


ACKNOWLEDGE_DOCS = _lease_docs("acknowledge_runtime_lease", EmptyBody, session=True)
HEARTBEAT_DOCS = _lease_docs(
    "renew_runtime_lease",
    serializers.HeartbeatInput,
    "illegal_move",
    response=serializers.HeartbeatOutput,
    examples=(HEARTBEAT, HEARTBEAT_RESPONSE),
    session=True,
)
REPORT_DOCS = _lease_docs(
    "report_runtime_phase", serializers.ReportInput, "illegal_move", examples=(REPORT, RUNNING), session=True
)
APPEND_LOG_DOCS = _lease_docs(
    "append_runtime_log",
    serializers.LogChunkInput,
    "chunk_conflict",
    "chunk_gap",
    response=serializers.LogChunkOutput,
    examples=(LOG_CHUNK, LOG_CHUNK_RESPONSE),
)
STORE_OUTPUT_DOCS = _lease_docs(
    "store_runtime_output",
    serializers.JobOutputInput,
    "overloaded",
    response=serializers.StoredOutput,
    examples=(OUTPUT, OUTPUT_RESPONSE),
)
COMPLETE_DOCS = _lease_docs(
    "complete_runtime_lease",
    serializers.CompleteInput,
    "conflict",
    "worker_mismatch",
    "pool_forbidden",
    response=serializers.FinishedOutput,
    examples=(COMPLETE_RUNTIME_JOB, COMPLETE_STEPS_JOB, COMPLETE_AND_CLAIM, UPLOADED, UPLOADED_AND_LEASED),
    session=True,
)
FAIL_DOCS = _lease_docs(
    "fail_runtime_lease",
    serializers.FailInput,
    "conflict",
    "worker_mismatch",
    "pool_forbidden",
    response=serializers.FinishedOutput,
    examples=(FAIL_RUNTIME_JOB, FAIL_STEPS_JOB, FAILED),
    session=True,
)
ACKNOWLEDGE_CANCEL_DOCS = _lease_docs(
    "acknowledge_runtime_cancel",
    serializers.AcknowledgeCancelInput,
    "conflict",
    "cancel_not_requested",
    examples=(CANCELED,),
)
RELEASE_DOCS = _lease_docs(
    "release_runtime_lease", serializers.ReleaseInput, "conflict", "illegal_move", examples=(RELEASED,)
)

UNREADY_DOCS = operation_docs(
    "report_runtime_worker_unready",
    request=serializers.UnreadyInput,
    responses={204: None},
    parameters=[WORKER_SESSION],
    examples=[
        request_example(
            "too little disk",
            {"reason": "disk_low", "message": "Its work directory has 536,870,912 bytes free. A job needs more."},
        )
    ],
    codes=("stale_lease",),
)


def _batch_docs(
    operation_id: str,
    *examples: OpenApiExample,
    response: type[Serializer] = serializers.JobStatusEntriesOutput,
    session: bool = False,
) -> Callable[[Any], Any]:
    """Document a message about many leases. The error of one lease is in its result."""
    return operation_docs(
        operation_id,
        request=serializers.LeaseBatchInput,
        responses={200: OpenApiResponse(response, description="One result per lease: 200, or an error.")},
        parameters=[WORKER_SESSION] if session else [],
        examples=list(examples),
    )


ACKNOWLEDGE_BATCH_DOCS = _batch_docs(
    "acknowledge_runtime_leases", _batch_request({}), _batch_response(RUNNING), session=True
)
HEARTBEAT_BATCH_DOCS = _batch_docs(
    "renew_runtime_leases",
    _batch_request(HEARTBEAT.value),
    _batch_response(HEARTBEAT_RESPONSE),
    response=serializers.HeartbeatEntriesOutput,
    session=True,
)
COMPLETE_BATCH_DOCS = _batch_docs(
    "complete_runtime_leases", _batch_request(COMPLETE_STEPS_JOB.value), _batch_response(UPLOADED)
)
FAIL_BATCH_DOCS = _batch_docs("fail_runtime_leases", _batch_request(FAIL_RUNTIME_JOB.value), _batch_response(FAILED))
