"""OpenAPI of the operations on schedules."""

from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import DELETED, location, path_parameter
from orchestrator.protocols.native.openapi import IDEMPOTENCY_KEY, REPLAYED_CREATED, request_example, response_example
from orchestrator.protocols.native.schedules import serializers
from runtime_jobs.identifiers import ULID_PATTERN

SCHEDULE_ID_PATTERN = f"sch_{ULID_PATTERN}"
SCHEDULE_ID = path_parameter("schedule_id", SCHEDULE_ID_PATTERN)
_LOCATION = location("Path of what was created.")
_TERMS: dict[str, Any] = {
    "org_slug": "sandtrace",
    "name": "nightly scan",
    "cron": "30 3 * * MON-FRI",
    "time_zone": "Europe/Berlin",
    "missed": "latest",
    "overlap": "skip",
    "job": {
        "project_slug": "web",
        "job_type": "scan",
        "spec": {"payload": {"imageRef": "nginx:latest"}, "timeout_seconds": 600},
    },
}
_SCHEDULE: dict[str, Any] = _TERMS | {
    "schedule_id": "sch_01kkygkagq0jk17bx6y1w8c3df",
    "status": "active",
    "next_at": "2026-03-18T02:30:00Z",
    "updated_by": {"kind": "client", "id": "token ci"},
    "created_at": "2026-03-17T20:00:00Z",
    "updated_at": "2026-03-17T20:00:00Z",
}
_DETAIL = _SCHEDULE | {"next_times": ["2026-03-18T02:30:00Z", "2026-03-19T02:30:00Z"]}
_TICK: dict[str, Any] = {
    "due_at": "2026-03-18T02:30:00Z",
    "outcome": "submitted",
    "is_manual": False,
    "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "missed_before": None,
    "error_code": None,
    "message": None,
    "created_at": "2026-03-18T02:30:00.412Z",
}

LIST_SCHEDULES = operation_docs("list_schedules", responses=serializers.ScheduleOutput(many=True))
GET_SCHEDULE = operation_docs(
    "get_schedule",
    responses=serializers.ScheduleDetailOutput,
    parameters=[SCHEDULE_ID],
    examples=[response_example("schedule with its next times", _DETAIL)],
    codes=("not_found",),
)
CREATE_SCHEDULE = operation_docs(
    "create_schedule",
    request=serializers.ScheduleInput,
    responses={201: serializers.ScheduleDetailOutput},
    parameters=[IDEMPOTENCY_KEY, REPLAYED_CREATED, _LOCATION],
    examples=[
        request_example("a scan on each working day", _TERMS),
        response_example("new schedule", _DETAIL, "201"),
    ],
    codes=("not_found", "conflict", "idempotency_conflict"),
)
CHANGE_SCHEDULE = operation_docs(
    "change_schedule",
    request=serializers.ChangeScheduleInput,
    responses=serializers.ScheduleDetailOutput,
    parameters=[SCHEDULE_ID],
    examples=[request_example("another time", {"cron": "0 4 * * *"}), response_example("schedule", _DETAIL)],
    codes=("not_found", "conflict"),
)
DELETE_SCHEDULE = operation_docs(
    "delete_schedule", responses={204: DELETED}, parameters=[SCHEDULE_ID], codes=("not_found",)
)
PAUSE_SCHEDULE = operation_docs(
    "pause_schedule",
    request=serializers.ScheduleReasonInput,
    responses=serializers.ScheduleDetailOutput,
    parameters=[SCHEDULE_ID],
    codes=("not_found",),
)
RESUME_SCHEDULE = operation_docs(
    "resume_schedule",
    request=serializers.ScheduleReasonInput,
    responses=serializers.ScheduleDetailOutput,
    parameters=[SCHEDULE_ID],
    codes=("not_found",),
)
RUN_SCHEDULE = operation_docs(
    "run_schedule",
    request=serializers.ScheduleReasonInput,
    responses={201: serializers.ScheduledJobOutput},
    parameters=[SCHEDULE_ID, IDEMPOTENCY_KEY, REPLAYED_CREATED, _LOCATION],
    examples=[request_example("run it now", {"reason": "the advisory of today"})],
    codes=(
        *("not_found", "conflict", "idempotency_conflict", "feature_not_enabled", "project_not_enabled"),
        *("repository_not_allowed", "pool_forbidden", "timeout_above_plan", "priority_forbidden"),
        *("queue_full", "submit_rate_exceeded", "too_many_concurrency_keys"),
    ),
)
LIST_TICKS = operation_docs(
    "list_schedule_ticks",
    responses=serializers.ScheduleTickOutput(many=True),
    parameters=[SCHEDULE_ID],
    examples=[response_example("one time", _TICK)],
    codes=("not_found",),
)
