"""What the OpenAPI document says of each operation: its id, bodies, headers, examples and codes."""

from collections.abc import Callable
from typing import Any, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.serializers import Serializer

from orchestrator.access.headers import KEY_PATTERN, SESSION_PATTERN
from orchestrator.access.schema import described
from orchestrator.protocols.native import answers, examples, requests
from runtime_jobs.identifiers import ULID_PATTERN

HEADER: Final = "header"
QUERY: Final = "query"
PATH: Final = "path"


def _header(name: str, pattern: str, about: str) -> OpenApiParameter:
    return OpenApiParameter(name, {"type": "string", "pattern": f"^{pattern}$"}, HEADER, description=about)


KEY = _header("Idempotency-Key", KEY_PATTERN, "The same request again gets the first answer; another one 409.")
SESSION = _header("Worker-Session", SESSION_PATTERN, "A ULID, by which a worker names its process.")
LEASE = OpenApiParameter("lease_id", {"type": "string", "pattern": f"^rtl_{ULID_PATTERN}$"}, PATH, required=True)
LOCATION = OpenApiParameter(
    "Location", {"type": "string"}, HEADER, required=True, response=[201], description="Where the job is."
)
REPLAYED = OpenApiParameter(
    "Idempotency-Replayed", {"type": "string", "enum": ["true"]}, HEADER, response=[201], description="Not the first."
)

SUBMIT = described(
    "submit_runtime_job",
    request=requests.SubmitJob,
    responses={201: answers.JobShown},
    parameters=[KEY, LOCATION, REPLAYED],
    examples=[examples.SUBMIT, examples.JOB],
    codes=(
        *("not_found", "feature_not_enabled", "project_not_enabled", "repository_not_allowed"),
        *("timeout_above_plan", "idempotency_conflict"),
    ),
)
LIST = described("list_runtime_jobs", responses=answers.JobShown(many=True), examples=[examples.JOB])
SHOW = described(
    "get_runtime_job", responses=answers.JobInDetail, examples=[examples.JOB_IN_DETAIL], codes=("not_found",)
)
CANCEL = described(
    "cancel_runtime_job",
    request=requests.CancelJob,
    responses={
        200: OpenApiResponse(answers.JobShown, description="Canceled, now or before."),
        202: OpenApiResponse(answers.JobShown, description="Asked for; its worker hears it with the next heartbeat."),
    },
    examples=[examples.CANCEL],
    codes=("not_found", "already_final"),
)
RETRY = described(
    "retry_runtime_job",
    request=requests.RetryJob,
    responses={201: answers.JobShown},
    parameters=[KEY, LOCATION, REPLAYED],
    examples=[examples.RETRY],
    codes=("not_found", "not_final", "already_final", "already_retried", "idempotency_conflict"),
)
EVENTS = described(
    "list_runtime_job_events",
    responses=answers.EventsShown,
    parameters=[
        OpenApiParameter(
            "after", {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}, QUERY, description="Only a higher seq."
        )
    ],
    examples=[examples.EVENTS],
    codes=("not_found",),
)
LOGS = described(
    "read_runtime_job_logs",
    responses={(200, "text/plain"): OpenApiTypes.STR},
    parameters=[OpenApiParameter("follow", OpenApiTypes.STR, QUERY, enum=["0", "1"], description="1: until the end.")],
    codes=("not_found",),
)

CLAIM = described(
    "claim_runtime_lease",
    request=requests.Claim,
    responses={201: answers.LeaseShown, 204: OpenApiResponse(description="No work for this worker now.")},
    parameters=[KEY, SESSION, REPLAYED],
    examples=[examples.CLAIM, examples.LEASE],
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
    "complete_runtime_lease", requests.Complete, "conflict", examples=(examples.COMPLETE, examples.UPLOADED)
)
FAIL = _of_a_lease("fail_runtime_lease", requests.Fail, "conflict", examples=(examples.FAIL, examples.FAILED))
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
