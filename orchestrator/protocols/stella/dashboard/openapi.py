"""OpenAPI of the dashboard."""

from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import response_example
from orchestrator.protocols.stella.dashboard.serializers import DashboardOutput
from orchestrator.protocols.stella.openapi import TENANT

_JOBS = {"created": 3, "queued": 40, "throttled": 12, "leased": 2, "running": 8}
_ENDED = {"completed": 120, "failed": 4, "canceled": 1, "queueSeconds": 2.418, "runSeconds": 37.05}
_EXAMPLE: dict[str, Any] = {
    "measuredAt": "2025-11-29T12:00:00Z",
    "tenants": ["acme-corp"],
    "jobs": _JOBS,
    "lastHour": _ENDED,
    "jobTypes": [{"jobType": "scan", "jobs": _JOBS, "oldestQueuedAt": "2025-11-29T11:58:21Z", "lastHour": _ENDED}],
    "failures": [{"reason": "lease_expired", "count": 3}, {"reason": "timed_out", "count": 1}],
    "sources": [
        {
            "sourceId": "acme-corp:scan",
            "status": "throttled",
            "until": None,
            "setBy": {"kind": "operator", "id": "olga"},
            "reason": "the registry is slow",
        }
    ],
    "breakers": [],
    "incidents": {"count": 0, "newest": []},
}
DASHBOARD_METRICS = operation_docs(
    "get_dashboard_metrics",
    responses=DashboardOutput,
    parameters=[TENANT],
    examples=[response_example("one tenant", _EXAMPLE)],
    codes=("not_found",),
)
