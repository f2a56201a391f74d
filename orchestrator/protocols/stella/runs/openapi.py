"""OpenAPI of the operations on runs."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from orchestrator.http.api.headers import SESSION_PATTERN
from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import location, request_example, response_example
from orchestrator.protocols.stella.openapi import HEADER, PATH, QUERY
from orchestrator.protocols.stella.runs import serializers

RUN_ID = OpenApiParameter(
    "run_id", {"type": "string", "format": "uuid"}, PATH, required=True, description="The id of the job."
)
NAME = OpenApiParameter("name", str, PATH, required=True, description="A relative path, as in the list.")
_AFTER = OpenApiParameter("after", str, QUERY, description="As `Last-Event-ID`, which wins.")
_LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID", str, HEADER, description="The id of the last event that was received. The stream continues there."
)
_SESSION = OpenApiParameter(
    "Worker-Session",
    {"type": "string", "pattern": f"^{SESSION_PATTERN}$"},
    HEADER,
    description="ULID that identifies the worker process.",
)
_LOCATION = location("Valid for 15 minutes.", 302)
_EVENTS = OpenApiExample(
    "output, then the end",
    'id: 0-0.6.1\nevent: chunk\ndata: {"step":0,"offset":0,"text":"hello\\n"}\n\n'
    'id: 1\nevent: end\ndata: {"status":"succeeded","state":"succeeded","exit_code":0}\n\n',
    response_only=True,
    status_codes=["200"],
    media_type="text/event-stream",
)
_ARTIFACT = {
    "name": "reports/scan.json",
    "attempt": 1,
    "sizeBytes": 1024,
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "createdAt": "2025-11-29T12:00:00Z",
    "expiresAt": "2026-02-27T12:00:00Z",
    "path": "/runs/01890a5d-ac96-774b-bcce-b302099a8057/artifacts/reports/scan.json",
}
_HEARTBEAT = {
    "runId": "01890a5d-ac96-774b-bcce-b302099a8057",
    "status": "running",
    "leaseExpiresAt": "2025-11-29T12:01:00Z",
    "cancelRequested": False,
    "cancelReason": None,
    "cancelDeadlineSeconds": None,
}

FOLLOW_LOG = operation_docs(
    "follow_run_log",
    responses={(200, "text/event-stream"): OpenApiTypes.STR},
    parameters=[RUN_ID, _AFTER, _LAST_EVENT_ID],
    examples=[_EVENTS],
    codes=("not_found", "too_many_streams", "follow_unavailable"),
)
LIST_RUN_ARTIFACTS = operation_docs(
    "list_run_artifacts",
    responses=serializers.RunArtifactOutput(many=True),
    parameters=[RUN_ID],
    examples=[response_example("artifact of a run", _ARTIFACT)],
    codes=("not_found",),
)
DOWNLOAD_RUN_ARTIFACT = operation_docs(
    "download_run_artifact",
    responses={302: OpenApiResponse(description="`Location` is the signed address of the content.")},
    parameters=[RUN_ID, NAME, _LOCATION],
    codes=("not_found",),
)
RENEW_RUN_LEASE = operation_docs(
    "renew_run_lease",
    request=serializers.RunHeartbeatInput,
    responses=serializers.RunHeartbeatOutput,
    parameters=[RUN_ID, _SESSION],
    examples=[
        request_example(
            "with progress",
            {
                "leaseId": "rtl_01kkygn4z3fkef0g4tgm6g3b1j",
                "phase": "executing",
                "progress": {"percent": 40, "currentStep": "scan"},
            },
        ),
        response_example("extended", _HEARTBEAT),
    ],
    codes=("not_found", "stale_lease", "illegal_move"),
)
