"""OpenAPI of the operations on pools: ids, bodies, examples and error codes."""

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import path_parameter
from orchestrator.protocols.native.limits.openapi import PAUSE_FIELDS, action_docs
from orchestrator.protocols.native.limits.serializers import PausePoolInput, ReasonInput, ThrottlePoolInput
from orchestrator.protocols.native.openapi import request_example, response_example
from orchestrator.protocols.native.pools import serializers
from orchestrator.protocols.native.serializers import SLUG

POOL_NAME = path_parameter("pool", SLUG, maxLength=63)
_POOL = response_example(
    "shared pool",
    {
        "pool": "shared-linux",
        "description": "For everybody",
        "policy": "fair",
        "aging": True,
        "least_isolation": "namespaces",
        "trace": None,
    },
)
_LOAD = response_example(
    "pool without free slots",
    {
        "pool": "shared-linux",
        "queued": 42,
        "servable": 40,
        "capped": False,
        "running": 8,
        "idle_slots": 0,
        "workers": {"active": 4, "silent": 1, "draining": 0, "maintenance": 0},
        "oldest_wait_seconds": 12.5,
        "starts_per_minute": 31,
        "at": "2026-03-17T20:03:20Z",
    },
)
_PAUSE = response_example("pause", PAUSE_FIELDS | {"scope": "pool", "org_slug": None, "key": "shared-linux"})

LIST_POOLS = operation_docs("list_pools", responses=serializers.PoolOutput(many=True), examples=[_POOL])
GET_POOL_LOAD = operation_docs(
    "get_pool_load",
    responses=serializers.PoolLoadOutput,
    parameters=[POOL_NAME],
    examples=[_LOAD],
    codes=("not_found",),
)
CHANGE_POOL = operation_docs(
    "change_pool",
    request=serializers.ChangePoolInput,
    responses=serializers.PoolOutput,
    parameters=[POOL_NAME],
    examples=[
        request_example("share between organizations", {"policy": "fair", "reason": "one organization fills the pool"}),
        _POOL,
    ],
    codes=("not_found", "operator_only"),
)
PAUSE_POOL = action_docs(
    "pause_pool",
    PausePoolInput,
    request_example("pause for maintenance", {"reason": "new disks", "until": "2026-03-17T21:00:00Z"}),
    _PAUSE,
    statuses=(200,),
    parameters=(POOL_NAME,),
)
RESUME_POOL = action_docs(
    "resume_pool",
    ReasonInput,
    request_example("resume", {"reason": "the disks are in"}),
    statuses=(204,),
    parameters=(POOL_NAME,),
)
THROTTLE_POOL = action_docs(
    "throttle_pool",
    ThrottlePoolInput,
    request_example("100 starts per hour", {"reason": "new disks", "per_hour": 100}),
    _PAUSE,
    statuses=(200, 204),
    parameters=(POOL_NAME,),
)
