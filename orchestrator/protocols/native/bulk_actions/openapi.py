"""OpenAPI of the operations on bulk actions."""

from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import idempotency_replayed, location, path_parameter
from orchestrator.protocols.native.bulk_actions import serializers
from orchestrator.protocols.native.openapi import IDEMPOTENCY_KEY, request_example, response_example
from runtime_jobs.identifiers import ULID_PATTERN

BULK_ACTION_ID_PATTERN = f"blk_{ULID_PATTERN}"
BULK_ACTION_ID = path_parameter("bulk_action_id", BULK_ACTION_ID_PATTERN)
_LOCATION = location("Path of the bulk action.", 202)
_REPLAYED = idempotency_replayed(
    202, description="Present if an earlier request with the same key has started the action."
)
_REQUEST: dict[str, Any] = {
    "org_slug": "sandtrace",
    "action": "cancel",
    "filter": {"project_slug": "web", "status": "queued"},
    "reason": "the branch was reverted",
}
_ACTION: dict[str, Any] = _REQUEST | {
    "bulk_action_id": "blk_01kkygkagq0jk17bx6y1w8c3df",
    "status": "running",
    "total": 5000,
    "done": 1250,
    "refused": 2,
    "created_by": {"kind": "client", "id": "token ci"},
    "aborted_by": None,
    "created_at": "2026-03-17T20:00:00Z",
    "started_at": "2026-03-17T20:00:01Z",
    "finished_at": None,
}
_REFUSAL = {
    "id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "code": "already_final",
    "detail": "The job has already ended: it is uploaded.",
    "refused_at": "2026-03-17T20:00:02Z",
}

LIST_BULK_ACTIONS = operation_docs("list_bulk_actions", responses=serializers.BulkActionOutput(many=True))
GET_BULK_ACTION = operation_docs(
    "get_bulk_action",
    responses=serializers.BulkActionOutput,
    parameters=[BULK_ACTION_ID],
    examples=[response_example("running action", _ACTION)],
    codes=("not_found",),
)
START_BULK_ACTION = operation_docs(
    "start_bulk_action",
    request=serializers.BulkActionInput,
    responses={200: serializers.BulkMatchOutput, 202: serializers.BulkActionOutput},
    parameters=[IDEMPOTENCY_KEY, _REPLAYED, _LOCATION],
    examples=[
        request_example("cancel what waits", _REQUEST),
        response_example("started action", _ACTION | {"status": "pending", "done": 0, "refused": 0}, "202"),
        response_example("dry run", {"matched": 5000, "limit": 20000}),
    ],
    codes=("not_found", "conflict", "idempotency_conflict"),
)
ABORT_BULK_ACTION = operation_docs(
    "abort_bulk_action",
    request=serializers.AbortBulkActionInput,
    responses=serializers.BulkActionOutput,
    parameters=[BULK_ACTION_ID],
    examples=[request_example("abort", {"reason": "the wrong project"})],
    codes=("not_found", "conflict"),
)
LIST_REFUSALS = operation_docs(
    "list_bulk_action_refusals",
    responses=serializers.BulkRefusalOutput(many=True),
    parameters=[BULK_ACTION_ID],
    examples=[response_example("a job that has ended", _REFUSAL)],
    codes=("not_found",),
)
