"""What the OpenAPI document says of each operation on leases: its id, bodies, headers, examples and codes."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, PolymorphicProxySerializer
from rest_framework.serializers import Serializer

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native import answers, answers_of_many, examples, examples_of_many, requests
from orchestrator.protocols.native.parameters import KEY, LEASE, REPLAYED, SESSION

CLAIMED = PolymorphicProxySerializer(
    "Claimed", [answers.LeaseShown, answers.LeasesShown], resource_type_field_name=None, many=False
)
CLAIM = operation_docs(
    "claim_runtime_lease",
    request=requests.Claim,
    responses={201: CLAIMED, 204: OpenApiResponse(description="No work for this worker now.")},
    parameters=[KEY, SESSION, REPLAYED],
    examples=[examples.CLAIM, examples_of_many.CLAIM_MANY, examples.LEASE, examples_of_many.LEASES],
    codes=("worker_mismatch", "pool_forbidden", "stale_lease", "idempotency_conflict"),
)


def _of_a_lease(
    operation_id: str,
    request: type[Serializer],
    *codes: str,
    answer: Any = answers.Told,
    examples: tuple[Any, ...] = (examples.TOLD,),
    session: bool = False,
) -> Callable[[Any], Any]:
    """What the holder of a lease says about its job."""
    return operation_docs(
        operation_id,
        request=request,
        responses={200: answer},
        parameters=[LEASE, SESSION] if session else [LEASE],
        examples=list(examples),
        codes=("not_found", "stale_lease", *codes),
    )


ACKNOWLEDGE = _of_a_lease("acknowledge_runtime_lease", requests.Nothing, session=True)
HEARTBEAT = _of_a_lease(
    "renew_runtime_lease",
    requests.Heartbeat,
    "illegal_move",
    answer=answers.RenewedShown,
    examples=(examples.HEARTBEAT, examples.RENEWED),
    session=True,
)
REPORT = _of_a_lease(
    "report_runtime_phase", requests.Report, "illegal_move", examples=(examples.REPORT, examples.TOLD), session=True
)
APPEND_LOG = _of_a_lease(
    "append_runtime_log",
    requests.LogChunk,
    "chunk_conflict",
    "chunk_gap",
    answer=answers.ChunkTaken,
    examples=(examples.CHUNK, examples.CHUNK_TAKEN),
)
COMPLETE = _of_a_lease(
    "complete_runtime_lease",
    requests.Complete,
    "conflict",
    examples=(examples.COMPLETE, examples.COMPLETE_STEPS, examples.UPLOADED),
)
FAIL = _of_a_lease(
    "fail_runtime_lease", requests.Fail, "conflict", examples=(examples.FAIL, examples.FAIL_STEPS, examples.FAILED)
)
ACKNOWLEDGE_CANCEL = _of_a_lease(
    "acknowledge_runtime_cancel",
    requests.AcknowledgeCancel,
    "conflict",
    "cancel_not_requested",
    examples=(examples.CANCELED,),
)
RELEASE = _of_a_lease(
    "release_runtime_lease", requests.Release, "conflict", "illegal_move", examples=(examples.RELEASED,)
)


def _of_many_leases(
    operation_id: str,
    *told: OpenApiExample,
    answer: type[Serializer] = answers_of_many.ToldResults,
    session: bool = False,
) -> Callable[[Any], Any]:
    """The same of many. What is wrong with one of them stands in its result."""
    return operation_docs(
        operation_id,
        request=requests.ManyLeases,
        responses={200: OpenApiResponse(answer, description="What became of each: 200, or a refusal.")},
        parameters=[SESSION] if session else [],
        examples=list(told),
    )


ACKNOWLEDGE_MANY = _of_many_leases(
    "acknowledge_runtime_leases", examples_of_many.ACKNOWLEDGE_MANY, examples_of_many.TOLD_MANY, session=True
)
HEARTBEAT_MANY = _of_many_leases(
    "renew_runtime_leases",
    examples_of_many.HEARTBEAT_MANY,
    examples_of_many.RENEWED_MANY,
    answer=answers_of_many.RenewedResults,
    session=True,
)
COMPLETE_MANY = _of_many_leases(
    "complete_runtime_leases", examples_of_many.COMPLETE_MANY, examples_of_many.UPLOADED_MANY
)
FAIL_MANY = _of_many_leases("fail_runtime_leases", examples_of_many.FAIL_MANY, examples_of_many.FAILED_MANY)
