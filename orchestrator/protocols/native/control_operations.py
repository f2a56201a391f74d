"""What the OpenAPI document says of the operations on limits, breakers, incidents and pools."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from orchestrator.http.api.headers import VERSION_PATTERN
from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native import control_answers as answers
from orchestrator.protocols.native import control_examples as examples
from orchestrator.protocols.native import control_requests as requests
from orchestrator.protocols.native.parameters import HEADER, KEY, PATH, QUERY, REPLAYED
from orchestrator.protocols.native.pool_operations import NAME as POOL
from orchestrator.protocols.native.pool_operations import POOL as A_POOL
from orchestrator.protocols.native.pool_operations import PoolShown

NUMBER = "[1-9][0-9]{0,8}"
LIMIT_ID = OpenApiParameter("limit_id", {"type": "string", "pattern": f"^{NUMBER}$"}, PATH, required=True)
_WORDS = {"type": "string", "minLength": 1, "maxLength": 500}
REASON = OpenApiParameter("reason", _WORDS, QUERY, required=True, description="Kept in the trail.")
IF_MATCH = OpenApiParameter(
    "If-Match", {"type": "string", "pattern": f"^{VERSION_PATTERN}$"}, HEADER, description="The ETag that you saw."
)
LOCATION = OpenApiParameter(
    "Location", {"type": "string"}, HEADER, required=True, response=[201], description="Where the limit is."
)
NOTHING = OpenApiResponse(description="Done; there is nothing to show.")
_OF_A_VERSION = ("not_found", "operator_only", "not_settable", "version_conflict", "precondition_required")


def _etag(*statuses: int) -> OpenApiParameter:
    return OpenApiParameter(
        "ETag", {"type": "string"}, HEADER, required=True, response=list(statuses), description="Its version."
    )


LIST_LIMITS = operation_docs("list_limits", responses=answers.LimitShown(many=True), examples=[examples.LIMIT])
GET_LIMIT = operation_docs(
    "get_limit",
    responses=answers.LimitShown,
    parameters=[LIMIT_ID, _etag(200)],
    examples=[examples.LIMIT],
    codes=("not_found",),
)
CREATE_LIMIT = operation_docs(
    "create_limit",
    request=requests.NewLimit,
    responses={201: answers.LimitShown},
    parameters=[KEY, LOCATION, REPLAYED, _etag(201)],
    examples=[examples.NEW_LIMIT, examples.LIMIT],
    codes=("not_found", "operator_only", "conflict", "idempotency_conflict"),
)
CHANGE_LIMIT = operation_docs(
    "change_limit",
    request=requests.ChangeLimit,
    responses=answers.LimitShown,
    parameters=[LIMIT_ID, IF_MATCH, _etag(200)],
    examples=[examples.CHANGE_LIMIT, examples.LIMIT],
    codes=_OF_A_VERSION,
)
LIFT_LIMIT = operation_docs(
    "lift_limit",
    responses={204: NOTHING},
    parameters=[LIMIT_ID, IF_MATCH, REASON],
    codes=("invalid", *_OF_A_VERSION),
)


def _verb(operation_id: str, request: Any, responses: Any, *shown: Any, parameters: tuple[Any, ...] = ()) -> Any:
    """A pause, a resume or a throttle. What it answers with a limit has its version."""
    return operation_docs(
        operation_id,
        request=request,
        responses=responses,
        parameters=[*parameters, *([_etag(200)] if 200 in responses else [])],
        examples=list(shown),
        codes=("not_found", "operator_only"),
    )


_SHOWN = {200: answers.LimitShown}
_SHOWN_OR_NOTHING = _SHOWN | {204: NOTHING}
PAUSE = _verb("pause_source", requests.Pause, _SHOWN, examples.PAUSE, examples.PAUSED)
RESUME = _verb("resume_source", requests.Resume, {204: NOTHING}, examples.RESUME)
THROTTLE = _verb("throttle_source", requests.Throttle, _SHOWN_OR_NOTHING, examples.THROTTLE, examples.THROTTLED)

PAUSE_POOL = _verb(
    "pause_pool",
    requests.PausePool,
    _SHOWN,
    examples.PAUSE_POOL,
    examples.POOL_PAUSED,
    parameters=(POOL,),
)
RESUME_POOL = _verb("resume_pool", requests.Reasoned, {204: NOTHING}, examples.RESUME_POOL, parameters=(POOL,))
THROTTLE_POOL = _verb(
    "throttle_pool",
    requests.ThrottlePool,
    _SHOWN_OR_NOTHING,
    examples.THROTTLE_POOL,
    examples.POOL_PAUSED,
    parameters=(POOL,),
)
CHANGE_POOL = operation_docs(
    "change_pool",
    request=requests.ChangePool,
    responses=PoolShown,
    parameters=[POOL],
    examples=[examples.CHANGE_POOL, A_POOL],
    codes=("not_found", "operator_only"),
)

LIST_BREAKERS = operation_docs("list_breakers", responses=answers.BreakerShown(many=True), examples=[examples.BREAKER])
RESET_BREAKER = operation_docs(
    "reset_breaker",
    request=requests.ResetBreaker,
    responses=answers.BreakerShown,
    examples=[examples.RESET, examples.RESETTED],
    codes=("not_found",),
)
LIST_INCIDENTS = operation_docs(
    "list_incidents", responses=answers.IncidentShown(many=True), examples=[examples.INCIDENT]
)
