"""OpenAPI of the operations on limits and quotas: ids, bodies, headers, examples and error codes."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from orchestrator.http.api.headers import IF_MATCH_PATTERN
from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native.limits import serializers
from orchestrator.protocols.native.openapi import (
    HEADER,
    IDEMPOTENCY_KEY,
    PATH,
    QUERY,
    REPLAYED_CREATED,
    etag,
    request_example,
    response_example,
)

LIMIT_ID_PATTERN = "[1-9][0-9]{0,8}"
LIMIT_ID = OpenApiParameter("limit_id", {"type": "string", "pattern": f"^{LIMIT_ID_PATTERN}$"}, PATH, required=True)
REASON = OpenApiParameter(
    "reason",
    {"type": "string", "minLength": 1, "maxLength": serializers.MAX_REASON_LENGTH},
    QUERY,
    required=True,
    description="Recorded in the audit log.",
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    {"type": "string", "pattern": f"^({IF_MATCH_PATTERN})$"},
    HEADER,
    description="The ETag of the version to change, several, or `*`. A weak one never matches. Required: without it "
    "the response is 428.",
)
LOCATION = OpenApiParameter(
    "Location", {"type": "string"}, HEADER, required=True, response=[201], description="Path of the new limit."
)
NO_CONTENT = OpenApiResponse(description="Done; no content.")
_EDIT_CODES = ("not_found", "operator_only", "not_settable", "version_conflict", "precondition_required")

# --- examples ---------------------------------------------------------------------------------------------------------

_REASON = {"reason": "the registry is down"}
_SOURCE = {"source": {"kind": "project", "org_slug": "sandtrace", "key": "web"}}
PAUSE_FIELDS: dict[str, Any] = {
    "limit_id": 17,
    "kind": "pause",
    "scope": "project",
    "org_slug": "sandtrace",
    "key": "web",
    "max_active": 0,
    "running": None,
    "per_hour": None,
    "burst": None,
    "next_start_at": "2026-03-17T21:00:00Z",
    "until": "2026-03-17T21:00:00Z",
    "waiting": True,
    "reason": "the registry is down",
    "set_by": {"kind": "client", "id": "token ci"},
    "set_at": "2026-03-17T20:00:00Z",
    "version": 1,
}
_RATE_FIELDS = {"max_active": None, "per_hour": 60, "burst": 5, "next_start_at": "2026-03-17T20:00:41Z"}
_RATE_LIMIT = response_example(
    "rate limit without free starts",
    PAUSE_FIELDS
    | _RATE_FIELDS
    | {"kind": "rate", "scope": "organization", "key": "*", "until": None, "reason": "too many jobs"},
    "200",
    "201",
)
_QUOTA = response_example(
    "submit quota",
    {
        "org_slug": "sandtrace",
        "plan": "team",
        "queued": 42,
        "max_queued": 10000,
        "submits_per_minute": 6000,
        "submit_burst": 2000,
        "refused": None,
        "retry_after": None,
    },
)

# --- operations -------------------------------------------------------------------------------------------------------

LIST_LIMITS = operation_docs("list_limits", responses=serializers.LimitOutput(many=True), examples=[_RATE_LIMIT])
GET_LIMIT = operation_docs(
    "get_limit",
    responses=serializers.LimitOutput,
    parameters=[LIMIT_ID, etag(200)],
    examples=[_RATE_LIMIT],
    codes=("not_found",),
)
CREATE_LIMIT = operation_docs(
    "create_limit",
    request=serializers.NewLimitInput,
    responses={201: serializers.LimitOutput},
    parameters=[IDEMPOTENCY_KEY, LOCATION, REPLAYED_CREATED, etag(201)],
    examples=[
        request_example(
            "60 starts per hour, 5 at once",
            {"kind": "rate", "org_slug": "sandtrace", "per_hour": 60, "burst": 5, "reason": "too many jobs"},
        ),
        request_example(
            "20 running jobs of a project",
            {"kind": "project", "org_slug": "sandtrace", "project_slug": "web", "max_active": 20} | _REASON,
        ),
        _RATE_LIMIT,
    ],
    codes=("not_found", "operator_only", "conflict", "idempotency_conflict"),
)
CHANGE_LIMIT = operation_docs(
    "change_limit",
    request=serializers.ChangeLimitInput,
    responses=serializers.LimitOutput,
    parameters=[LIMIT_ID, IF_MATCH, etag(200)],
    examples=[request_example("higher rate", {"per_hour": 120, "reason": "fewer jobs now"}), _RATE_LIMIT],
    codes=_EDIT_CODES,
)
REMOVE_LIMIT = operation_docs(
    "lift_limit",
    responses={204: NO_CONTENT},
    parameters=[LIMIT_ID, IF_MATCH, REASON],
    codes=("invalid", *_EDIT_CODES),
)


def action_docs(
    operation_id: str,
    request: Any,
    *examples: OpenApiExample,
    statuses: tuple[int, ...],
    parameters: tuple[OpenApiParameter, ...] = (),
) -> Callable[[Any], Any]:
    """Document a pause, resume or throttle.

    Args:
        operation_id: Id of the operation.
        request: Serializer of the body.
        examples: Examples of the request and the response.
        statuses: 200 if the response is the limit, 204 if the limit is removed.
        parameters: Parameters of the path.
    """
    responses = {200: serializers.LimitOutput, 204: NO_CONTENT}
    return operation_docs(
        operation_id,
        request=request,
        responses={status: responses[status] for status in statuses},
        parameters=[*parameters, *([etag(200)] if 200 in statuses else [])],
        examples=list(examples),
        codes=("not_found", "operator_only"),
    )


PAUSE = action_docs(
    "pause_source",
    serializers.PauseInput,
    request_example("pause a project for an hour", _SOURCE | _REASON | {"until": "2026-03-17T21:00:00Z"}),
    response_example("pause", PAUSE_FIELDS),
    statuses=(200,),
)
RESUME = action_docs(
    "resume_source",
    serializers.ResumeInput,
    request_example("resume a project", _SOURCE | {"reason": "the registry is up"}),
    statuses=(204,),
)
THROTTLE = action_docs(
    "throttle_source",
    serializers.ThrottleInput,
    request_example("ten starts per hour", _SOURCE | _REASON | {"per_hour": 10, "burst": 2}),
    response_example("throttle", PAUSE_FIELDS | _RATE_FIELDS | {"kind": "throttle", "until": None}),
    statuses=(200, 204),
)
LIST_QUOTAS = operation_docs("list_quotas", responses=serializers.QuotaOutput(many=True), examples=[_QUOTA], codes=())
