"""OpenAPI of the operations on events."""

from typing import Any, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import response_example
from orchestrator.protocols.stella.events.serializers import EventListOutput
from orchestrator.protocols.stella.openapi import HEADER, QUERY, TENANT
from runtime_jobs.specs import JOB_TYPES

_LIST: Final = "One value, or several separated by commas."

_JOB_TYPE = OpenApiParameter(
    "jobType", {"type": "string", "minLength": 1}, QUERY, description=f"{_LIST} Known: {', '.join(JOB_TYPES)}."
)
_EVENT_TYPE = OpenApiParameter("eventType", {"type": "string", "minLength": 1}, QUERY, description=_LIST)
_JOB_ID = OpenApiParameter("jobId", {"type": "string", "format": "uuid"}, QUERY, description="Only this job.")
_AFTER = OpenApiParameter(
    "after", {"type": "string", "minLength": 1}, QUERY, description="A `place`, or the id of an event of the stream."
)
_AFTER_EVENT = OpenApiParameter("after", {"type": "string", "minLength": 1}, QUERY, description="A `place`.")
_LIMIT = OpenApiParameter("limit", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}, QUERY)
_LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    {"type": "string"},
    HEADER,
    description="The id of the last event that the client has. Browsers send it when they connect again.",
)
_ENVELOPE: dict[str, Any] = {
    "eventId": "0193782c-6e00-7b5e-8f3a-0b6a0c1d2e3f",
    "eventType": "job.completed",
    "timestamp": "2025-11-29T12:00:00Z",
    "tenant": "acme-corp",
    "jobId": "01937829-aa10-7c44-9a55-5d1e2f3a4b5c",
    "jobType": "scan",
    "correlationId": "4bf92f3577b34da6a3ce929d0e0e4736",
    "idempotencyKey": "01937829-aa10-7c44-9a55-5d1e2f3a4b5c:7",
    "payload": {
        "status": "completed",
        "duration": 45.2,
        "result": {"verdict": "pass", "exitCode": 0},
        "actor": "worker:wrk_01jdy2p8s0e4q8v2m6k0c3x7zb",
        "details": {},
    },
    "provenance": {
        "workerId": "wrk_01jdy2p8s0e4q8v2m6k0c3x7zb",
        "leaseId": "9f86d081884c7d65",
        "taskRunnerId": None,
    },
    "integrity": {"attempt": 1, "sequence": 7, "prevHash": "2c26b46b68ffc68f" * 4, "hash": "fcde2b2edba56bf4" * 4},
}
_PLACE: Final = "DCqklamaf-TVyjE5NE8gNA"


def _page_example(place: str) -> OpenApiExample:
    return response_example("one event", {"next": None, "previous": None, "results": [_ENVELOPE], "place": place})


LIST_EVENTS = operation_docs(
    "list_tenant_events",
    responses=EventListOutput,
    parameters=[TENANT, _JOB_TYPE, _EVENT_TYPE, _JOB_ID, _AFTER, _LIMIT],
    examples=[_page_example(_PLACE)],
    codes=("not_found",),
)
LIST_JOB_EVENTS = operation_docs(
    "list_events_of_job",
    responses=EventListOutput,
    parameters=[_AFTER_EVENT, _LIMIT],
    examples=[_page_example("1.7")],
    codes=("not_found",),
)
STREAM_DASHBOARD_EVENTS = operation_docs(
    "stream_dashboard_events",
    responses={(200, "text/event-stream"): OpenApiTypes.STR},
    parameters=[TENANT, _JOB_TYPE, _EVENT_TYPE, _JOB_ID, _AFTER, _LAST_EVENT_ID],
    examples=[
        OpenApiExample(
            "beginning of a stream",
            f'retry: 3000\n\nid: {_PLACE}\nevent: snapshot\ndata: {{"jobs":{{"queued":3}}}}\n\n',
            response_only=True,
            status_codes=["200"],
            media_type="text/event-stream",
        )
    ],
    codes=("invalid", "not_found", "too_many_streams", "no_streams"),
)
