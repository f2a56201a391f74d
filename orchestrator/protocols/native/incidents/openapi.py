"""OpenAPI of the operations on incidents and incident modes: ids, bodies, examples and error codes."""

from typing import Any

from drf_spectacular.utils import OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import path_parameter
from orchestrator.protocols.native.incidents import serializers
from orchestrator.protocols.native.openapi import request_example, response_example
from runtime_jobs.identifiers import ULID_PATTERN

INCIDENT_ID_PATTERN = f"inc_{ULID_PATTERN}"
INCIDENT_ID = path_parameter("incident_id", INCIDENT_ID_PATTERN)
_FIELDS: dict[str, Any] = {
    "incident_id": "inc_01kkygkagq0jk17bx6y1w8c3df",
    "kind": "job",
    "status": "open",
    "org_slug": "sandtrace",
    "job_type": "steps",
    "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "webhook_id": None,
    "worker_id": None,
    "reason": "lease_expired",
    "summary": "A steps job of sandtrace/web failed: lease_expired.",
    "opened_at": "2026-03-17T20:00:00Z",
    "acknowledged_at": None,
    "acknowledged_by": None,
    "resolved_at": None,
    "resolved_by": None,
    "resolution": None,
}
_ACTOR = {"kind": "operator", "id": "olga"}
_ACKNOWLEDGED = {"status": "acknowledged", "acknowledged_at": "2026-03-17T20:05:00Z", "acknowledged_by": _ACTOR}
_RESOLVED = {
    "status": "resolved",
    "resolved_at": "2026-03-17T21:00:00Z",
    "resolved_by": _ACTOR,
    "resolution": "the disk is replaced",
}
_MODE = {
    "org_slug": "sandtrace",
    "reason": "investigation of the failed deployment",
    "begun_at": "2026-03-17T20:00:00Z",
    "begun_by": _ACTOR,
    "until": "2026-03-19T20:00:00Z",
}

LIST_INCIDENTS = operation_docs(
    "list_incidents",
    responses=serializers.IncidentOutput(many=True),
    examples=[response_example("open incident", _FIELDS)],
)
GET_INCIDENT = operation_docs(
    "get_incident",
    responses=serializers.IncidentOutput,
    parameters=[INCIDENT_ID],
    examples=[response_example("open incident", _FIELDS)],
    codes=("not_found",),
)
ACKNOWLEDGE_INCIDENT = operation_docs(
    "acknowledge_incident",
    request=serializers.IncidentReasonInput,
    responses=serializers.IncidentOutput,
    parameters=[INCIDENT_ID],
    examples=[
        request_example("acknowledge", {"reason": "I look for the worker"}),
        response_example("acknowledged incident", _FIELDS | _ACKNOWLEDGED),
    ],
    codes=("not_found", "conflict"),
)
RESOLVE_INCIDENT = operation_docs(
    "resolve_incident",
    request=serializers.IncidentReasonInput,
    responses=serializers.IncidentOutput,
    parameters=[INCIDENT_ID],
    examples=[
        request_example("resolve", {"reason": "the disk is replaced"}),
        response_example("resolved incident", _FIELDS | _RESOLVED),
    ],
    codes=("not_found", "not_settable"),
)
LIST_INCIDENT_MODES = operation_docs(
    "list_incident_modes",
    responses=serializers.IncidentModeOutput(many=True),
    examples=[response_example("incident mode", _MODE)],
)
BEGIN_INCIDENT_MODE = operation_docs(
    "begin_incident_mode",
    request=serializers.BeginIncidentModeInput,
    responses=serializers.IncidentModeOutput,
    examples=[
        request_example("two days", {name: _MODE[name] for name in ("org_slug", "reason", "until")}),
        response_example("incident mode", _MODE),
    ],
    codes=("not_found",),
)
END_INCIDENT_MODE = operation_docs(
    "end_incident_mode",
    request=serializers.EndIncidentModeInput,
    responses={204: OpenApiResponse(description="Done; no content.")},
    examples=[request_example("end", {"org_slug": "sandtrace", "reason": "the investigation is over"})],
    codes=("not_found",),
)
