"""OpenAPI of the operations on replays."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import (
    idempotency_key,
    idempotency_replayed,
    location,
    request_example,
    response_example,
)
from orchestrator.protocols.stella.jobs.openapi import JOB_ID
from orchestrator.protocols.stella.openapi import QUERY
from orchestrator.protocols.stella.replays import serializers

_KEY = idempotency_key("A repeated request returns the first replay, another request is 409.")
_LOCATION = location("Path of the replay, a job.")
_REPEATED = idempotency_replayed(description="Present if an earlier request with the same key has created the replay.")
SIGNED = OpenApiParameter(
    "signed",
    {"type": "string", "enum": ["true", "false"]},
    QUERY,
    description="`true`: a DSSE envelope with the manifest, signed by a key of `GET /v1/keys`.",
)

_RECORD: dict[str, Any] = {
    "jobId": "01890a5d-ac96-774b-bcce-b302099a8059",
    "replayOf": "01890a5d-ac96-774b-bcce-b302099a8057",
    "priority": "high",
    "reason": "audit-verification",
    "requestedBy": "token auditor",
    "cursors": {"advisory": "cursor-abc", "vex": "cursor-def"},
    "sealed": True,
}
_DIVERGED = _RECORD | {
    "verdict": "diverged",
    "difference": {
        "path": "/outputs/artifacts/report.json/digest",
        "expected": "sha256:9c8de5ca3c3f8cc5f9bb3bb0e5be1ba1ecbf0ae1a4ea12ed4f9d9ec0ff1c2b6e",
        "found": "sha256:1f0d6b2bd2a5d5d0fd57d3a6bb5cc0d8f6f0c6ff1b0c7f0e6e6b5bdb5ad1f2c3",
    },
    "reasons": [],
    "notes": [],
    "createdAt": "2025-11-29T12:00:00Z",
    "decidedAt": "2025-11-29T12:01:00Z",
}

REPLAY_JOB = operation_docs(
    "replay_orchestration_job",
    request=serializers.ReplayInput,
    responses={201: serializers.ReplayRecordOutput},
    parameters=[JOB_ID, _KEY, _LOCATION, _REPEATED],
    examples=[
        request_example("for an audit", {"reason": "audit-verification", "priority": "high", "sealed": True}),
        response_example("new replay", _RECORD, "201"),
    ],
    codes=(
        *("not_found", "not_final", "not_replayable", "digest_mismatch", "idempotency_conflict"),
        *("project_not_enabled", "feature_not_enabled", "repository_not_allowed", "timeout_above_plan"),
        *("priority_forbidden", "queue_full", "submit_rate_exceeded"),
    ),
)
GET_REPLAY = operation_docs(
    "get_orchestration_replay",
    responses=serializers.ReplayOutput,
    parameters=[JOB_ID],
    examples=[response_example("a replay that diverged", _DIVERGED)],
    codes=("not_found",),
)
GET_MANIFEST = operation_docs(
    "get_orchestration_job_manifest",
    responses=serializers.ManifestOutput,
    parameters=[JOB_ID, SIGNED],
    codes=("not_found", "not_final", "not_replayable"),
)
