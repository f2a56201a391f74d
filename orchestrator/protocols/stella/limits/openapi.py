"""OpenAPI of the operations on temporary limits."""

from collections.abc import Callable
from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import request_example, response_example
from orchestrator.protocols.stella.limits import serializers
from orchestrator.protocols.stella.sources.openapi import PAUSED_FIELDS
from orchestrator.protocols.stella.sources.serializers import JobSourceOutput

_NONE: dict[str, Any] = {"status": "active", "until": None, "setBy": None, "setAt": None, "reason": ""}
_SOURCE = {"sourceId": "acme-corp:scan", "reason": "the registry is down"}


def _docs(operation_id: str, request: Any, body: dict[str, Any], fields: dict[str, Any]) -> Callable[[Any], Any]:
    return operation_docs(
        operation_id,
        request=request,
        responses=JobSourceOutput,
        examples=[
            request_example("a job type", body),
            response_example("the source afterwards", PAUSED_FIELDS | fields),
        ],
        codes=("not_found", "operator_only"),
    )


PAUSE_JOB_SOURCE = _docs(
    "pause_job_source", serializers.PauseSourceInput, _SOURCE | {"until": "2025-11-29T13:00:00Z"}, {}
)
RESUME_JOB_SOURCE = _docs("resume_job_source", serializers.ResumeSourceInput, {"sourceId": "acme-corp:scan"}, _NONE)
THROTTLE_JOB_SOURCE = _docs(
    "throttle_job_source",
    serializers.ThrottleSourceInput,
    _SOURCE | {"maxPerHour": 10, "burst": 2},
    {"status": "throttled", "until": None, "maxPerHour": 10, "burst": 2},
)
