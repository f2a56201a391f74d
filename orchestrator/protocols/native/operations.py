"""What the OpenAPI document says of each operation: its id, bodies, headers, examples and codes."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    PolymorphicProxySerializer,
    extend_schema_view,
)
from rest_framework.serializers import Serializer

from orchestrator.access.headers import KEY_PATTERN, SESSION_PATTERN
from orchestrator.access.schema import described
from orchestrator.protocols.native import answers, answers_of_many, examples, examples_of_many, requests
from runtime_jobs.identifiers import ULID_PATTERN

HEADER: Final = "header"
QUERY: Final = "query"
PATH: Final = "path"


def _header(name: str, pattern: str, about: str) -> OpenApiParameter:
    return OpenApiParameter(name, {"type": "string", "pattern": f"^{pattern}$"}, HEADER, description=about)


KEY = _header("Idempotency-Key", KEY_PATTERN, "The same request again gets the first answer; another one 409.")
SESSION = _header("Worker-Session", SESSION_PATTERN, "A ULID, by which a worker names its process.")
LEASE = OpenApiParameter("lease_id", {"type": "string", "pattern": f"^rtl_{ULID_PATTERN}$"}, PATH, required=True)
AFTER = OpenApiParameter(
    "after", {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}, QUERY, description="Only a higher seq."
)
FOLLOW = OpenApiParameter("follow", OpenApiTypes.STR, QUERY, enum=["0", "1"], description="1: until the end.")
LOCATION = OpenApiParameter(
    "Location", {"type": "string"}, HEADER, required=True, response=[201], description="Where the job is."
)
REPLAYED = OpenApiParameter(
    "Idempotency-Replayed", {"type": "string", "enum": ["true"]}, HEADER, response=[201], description="Not the first."
)
REPLAYED_MANY = OpenApiParameter(
    "Idempotency-Replayed", {"type": "string", "enum": ["true"]}, HEADER, response=[200], description="Not the first."
)


class _Told(NamedTuple):
    """The examples of a view of jobs."""

    submits: list[OpenApiExample]
    job: OpenApiExample
    listed: OpenApiExample
    detail: OpenApiExample
    bulk: list[OpenApiExample]


def _of_jobs(
    noun: str,
    *,
    submit: type[Serializer],
    shown: type[Serializer],
    listed: type[Serializer],
    detail: type[Serializer],
    results: type[Serializer],
    told: _Told,
) -> Callable[[Any], Any]:
    """Describe the operations of a view of jobs. `noun` makes their ids."""
    return extend_schema_view(
        create=described(
            f"submit_{noun}",
            request=submit,
            responses={201: shown},
            parameters=[KEY, LOCATION, REPLAYED],
            examples=[*told.submits, told.job],
            codes=(
                *("not_found", "feature_not_enabled", "project_not_enabled", "repository_not_allowed"),
                *("pool_forbidden", "timeout_above_plan", "invalid_dependency"),
                *("priority_forbidden", "idempotency_conflict"),
            ),
        ),
        bulk=described(
            f"submit_{noun}s",
            request=requests.ManyJobs,
            responses={
                200: OpenApiResponse(results, description="What became of each: 201 with the job, or a refusal.")
            },
            parameters=[KEY, REPLAYED_MANY],
            examples=told.bulk,
            codes=("idempotency_conflict",),
        ),
        list=described(f"list_{noun}s", responses=listed(many=True), examples=[told.listed]),
        retrieve=described(f"get_{noun}", responses=detail, examples=[told.detail], codes=("not_found",)),
        cancel=described(
            f"cancel_{noun}",
            request=requests.CancelJob,
            responses={
                200: OpenApiResponse(shown, description="Canceled, now or before."),
                202: OpenApiResponse(shown, description="Asked for; its worker hears it with the next heartbeat."),
            },
            examples=[examples.CANCEL],
            codes=("not_found", "already_final"),
        ),
        retry=described(
            f"retry_{noun}",
            request=requests.RetryJob,
            responses={201: shown},
            parameters=[KEY, LOCATION, REPLAYED],
            examples=[examples.RETRY],
            codes=("not_found", "not_final", "already_final", "already_retried", "idempotency_conflict"),
        ),
        events=described(
            f"list_{noun}_events",
            responses=answers.EventsShown,
            parameters=[AFTER],
            examples=[examples.EVENTS],
            codes=("not_found",),
        ),
        logs=described(
            f"read_{noun}_logs",
            responses={(200, "text/plain"): OpenApiTypes.STR},
            parameters=[FOLLOW],
            codes=("not_found",),
        ),
    )


of_runtime_jobs = _of_jobs(
    "runtime_job",
    submit=requests.SubmitJob,
    shown=answers.JobShown,
    listed=answers.JobListed,
    detail=answers.JobInDetail,
    results=answers_of_many.JobResults,
    told=_Told(
        [examples.SUBMIT],
        examples.JOB,
        examples.JOB_LISTED,
        examples.JOB_IN_DETAIL,
        [examples_of_many.SUBMIT_MANY, examples_of_many.SUBMITTED_MANY],
    ),
)
of_any_jobs = _of_jobs(
    "job",
    submit=requests.SubmitAny,
    shown=answers.AnyJobShown,
    listed=answers.AnyJobListed,
    detail=answers.AnyJobInDetail,
    results=answers_of_many.AnyJobResults,
    told=_Told(
        [examples.SUBMIT_STEPS, examples.SUBMIT_ANY],
        examples.ANY_JOB,
        examples.ANY_JOB_LISTED,
        examples.ANY_JOB_IN_DETAIL,
        [examples_of_many.SUBMIT_MANY_ANY, examples_of_many.SUBMITTED_MANY_ANY],
    ),
)

CLAIMED = PolymorphicProxySerializer(
    "Claimed", [answers.LeaseShown, answers.LeasesShown], resource_type_field_name=None, many=False
)
CLAIM = described(
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
    return described(
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
    return described(
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
