"""OpenAPI of the operations on jobs: ids, bodies, headers, examples and error codes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema_view
from rest_framework.serializers import Serializer

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import location
from orchestrator.protocols.native.jobs import serializers
from orchestrator.protocols.native.openapi import (
    HEADER,
    IDEMPOTENCY_KEY,
    QUERY,
    REPLAYED_CREATED,
    REPLAYED_OK,
    request_example,
    response_example,
)

AFTER = OpenApiParameter(
    "after",
    {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
    QUERY,
    description="Return only events with a higher `seq`.",
)
FOLLOW = OpenApiParameter(
    "follow", OpenApiTypes.STR, QUERY, enum=["0", "1"], description="`1`: continue until the job has ended."
)
STEP = OpenApiParameter(
    "step",
    {"type": "integer", "minimum": 0, "maximum": 10**9 - 1},
    QUERY,
    description="Return only the log of this step. Not with `follow=1`.",
)
AFTER_ANNOTATION = OpenApiParameter(
    "after",
    {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
    QUERY,
    description="Return only annotations with a higher `id`.",
)
LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    OpenApiTypes.STR,
    HEADER,
    description="The `id` of the last event that the client has. The stream continues after it, with no gap and no "
    "repetition. An id that is not of this job begins at the start.",
)
AFTER_EVENT = OpenApiParameter(
    "after", OpenApiTypes.STR, QUERY, description="As `Last-Event-ID`, for pages that cannot send it; the header wins."
)
LOCATION = location("Path of the new job.")
QUOTA_CODES = ("queue_full", "submit_rate_exceeded")

# --- examples ---------------------------------------------------------------------------------------------------------

SUBMIT_RUNTIME_JOB = request_example(
    "install dependencies of a pull request",
    {
        "org_slug": "sandtrace",
        "project_slug": "web",
        "source": {
            "kind": "github",
            "repo_url": "https://github.com/cc-consulting-nv/web.git",
            "owner": "cc-consulting-nv",
            "repo": "web",
            "ref": "refs/heads/main",
            "git_commit": "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf",
            "pull_request_number": 98,
        },
        "execution": {
            "working_directory": ".",
            "command": ["pnpm", "install"],
            "timeout_seconds": 300,
            "allow_network": True,
            "allow_exec": True,
        },
        "trigger": {"kind": "pull_request", "actor": "github-app"},
    },
)
SUBMIT_STEPS_JOB = request_example(
    "job of type steps",
    {
        "org_slug": "sandtrace",
        "project_slug": "web",
        "job_type": "steps",
        "spec": {
            "name": "unit-tests",
            "steps": ["make build", "make test"],
            "environment": {"CI": "true"},
            "artifacts": [{"type": "junit", "path_glob": "reports/**/*.xml"}],
            "timeout_seconds": 600,
            "source": SUBMIT_RUNTIME_JOB.value["source"],
        },
        "trigger": {"kind": "manual", "actor": "alice"},
    },
)
SUBMIT_ANY_JOB = request_example(
    "job of type runtime",
    {
        **{name: SUBMIT_RUNTIME_JOB.value[name] for name in ("org_slug", "project_slug", "trigger")},
        "job_type": "runtime",
        "spec": {name: SUBMIT_RUNTIME_JOB.value[name] for name in ("source", "execution")},
    },
)
CANCEL = request_example("cancel with a reason", {"reason": "superseded by another push"})
RETRY = request_example("retry with a reason", {"reason": "the registry was down"})

JOB_FIELDS: dict[str, Any] = {
    "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "status": "queued",
    "state": "queued",
    "created_at": "2026-03-17T20:00:00Z",
    "started_at": None,
    "finished_at": None,
    **{name: SUBMIT_RUNTIME_JOB.value[name] for name in ("org_slug", "project_slug", "source", "trigger")},
    "execution": SUBMIT_RUNTIME_JOB.value["execution"] | {"trace": None},
    "pool": "shared-linux",
    "trace": "full",
    "priority": 200,
    "concurrency_key": None,
    "attempt": 1,
    "retry_of": None,
    "root_job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "cancel_requested": False,
    "ingest_run_id": None,
    "exit_code": None,
    "failure": None,
    "correlation_id": "0af7651916cd43dd8448eb211c80319c",
}
_EVENT = {
    "event_id": "evt_01kkygkagr5v0c2j6zp6m0n1q4",
    "seq": 1,
    "event_type": "job.queued",
    "created_at": "2026-03-17T20:00:00Z",
    "actor": {"kind": "client", "id": "token ci"},
    "worker_id": None,
    "from_state": None,
    "to_state": "queued",
    "fence": 0,
    "payload": {"trigger": "pull_request", "trigger_actor": "github-app"},
    "hash": "3b4c6e0f5d1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4",
}
_PENDING_FIELDS: dict[str, Any] = {
    "queue_position": 3,
    "pending_reason": {
        "code": "behind",
        "message": "Number 3 in the queue of the pool shared-linux; 2 workers that could run it are alive.",
        "pool": "shared-linux",
        "workers_alive": 2,
        "position": 3,
    },
}
_DETAIL_FIELDS: dict[str, Any] = _PENDING_FIELDS | {
    "idempotency_key": "nightly-2025-11-29",
    "progress": None,
    "log_truncated": None,
    "last_event": _EVENT,
    "depends_on": [],
    "retries": [],
    "artifacts": [],
    "explanation": None,
}
_ANY_JOB_FIELDS = {
    **{name: value for name, value in JOB_FIELDS.items() if name not in {"source", "execution"}},
    **{name: SUBMIT_STEPS_JOB.value[name] for name in ("org_slug", "project_slug", "trigger", "job_type")},
    "spec": SUBMIT_STEPS_JOB.value["spec"]
    | {"working_directory": ".", "caches": [], "image": None, "trace": None, "allow_network": False},
    "trace": "none",
    "batch_id": None,
    "result": None,
}
LOG_EVENTS = OpenApiExample(
    "output, then the end",
    'id: 0-0.6.1\nevent: chunk\ndata: {"step":0,"offset":0,"text":"hello\\n"}\n\n'
    'id: 1\nevent: end\ndata: {"status":"succeeded","state":"succeeded","exit_code":0}\n\n',
    response_only=True,
    status_codes=["200"],
    media_type="text/event-stream",
)
EVENTS = response_example("first event", {"results": [_EVENT], "next_after": None})


def _bulk_examples(submit: OpenApiExample, job: OpenApiExample) -> list[OpenApiExample]:
    return [
        request_example("list of jobs", {"jobs": [submit.value]}),
        response_example("one new job", {"results": [{"status": 201, "body": job.value}]}),
    ]


# --- operations -------------------------------------------------------------------------------------------------------


class _JobDocs(NamedTuple):
    """Differences between the two views of jobs: the noun in operation ids, serializers, examples."""

    noun: str
    submit: type[Serializer]
    job: type[Serializer]
    listed: type[Serializer]
    detail: type[Serializer]
    entries: type[Serializer]
    submit_examples: list[OpenApiExample]
    job_fields: dict[str, Any]


def _document(docs: _JobDocs) -> Callable[[Any], Any]:
    """Return the class decorator that documents all operations of a view of jobs."""
    noun, job_example = docs.noun, response_example("new job", docs.job_fields, "200", "201")
    return extend_schema_view(
        create=operation_docs(
            f"submit_{noun}",
            request=docs.submit,
            responses={201: docs.job},
            parameters=[IDEMPOTENCY_KEY, LOCATION, REPLAYED_CREATED],
            examples=[*docs.submit_examples, job_example],
            codes=(
                *("not_found", "feature_not_enabled", "project_not_enabled", "repository_not_allowed"),
                *("pool_forbidden", "timeout_above_plan", "invalid_dependency"),
                *("priority_forbidden", "idempotency_conflict", *QUOTA_CODES, "too_many_concurrency_keys"),
            ),
        ),
        bulk=operation_docs(
            f"submit_{noun}s",
            request=serializers.BulkSubmitInput,
            responses={
                200: OpenApiResponse(docs.entries, description="One result per job: 201 with the job, or an error.")
            },
            parameters=[IDEMPOTENCY_KEY, REPLAYED_OK],
            examples=_bulk_examples(docs.submit_examples[0], job_example),
            codes=("idempotency_conflict", *QUOTA_CODES),
        ),
        list=operation_docs(
            f"list_{noun}s",
            responses=docs.listed(many=True),
            examples=[response_example("waiting job", docs.job_fields | _PENDING_FIELDS)],
        ),
        retrieve=operation_docs(
            f"get_{noun}",
            responses=docs.detail,
            examples=[response_example("waiting job", docs.job_fields | _DETAIL_FIELDS)],
            codes=("not_found",),
        ),
        cancel=operation_docs(
            f"cancel_{noun}",
            request=serializers.CancelJobInput,
            responses={
                200: OpenApiResponse(docs.job, description="The job is canceled, now or earlier."),
                202: OpenApiResponse(
                    docs.job, description="Cancel requested. The worker receives it with its next heartbeat."
                ),
            },
            examples=[CANCEL],
            codes=("not_found", "already_final"),
        ),
        retry=operation_docs(
            f"retry_{noun}",
            request=serializers.RetryJobInput,
            responses={201: docs.job},
            parameters=[IDEMPOTENCY_KEY, LOCATION, REPLAYED_CREATED],
            examples=[RETRY],
            codes=(
                "not_found",
                "not_final",
                "not_retryable",
                "already_final",
                "already_retried",
                "idempotency_conflict",
                *QUOTA_CODES,
            ),
        ),
        events=operation_docs(
            f"list_{noun}_events",
            responses=serializers.EventsOutput,
            parameters=[AFTER],
            examples=[EVENTS],
            codes=("not_found",),
        ),
        logs=operation_docs(
            f"read_{noun}_logs",
            responses={(200, "text/plain"): OpenApiTypes.STR},
            parameters=[FOLLOW, STEP],
            codes=("not_found", "too_many_streams", "follow_unavailable"),
        ),
        log_events=operation_docs(
            f"stream_{noun}_logs",
            responses={(200, "text/event-stream"): OpenApiTypes.STR},
            parameters=[LAST_EVENT_ID, AFTER_EVENT],
            examples=[LOG_EVENTS],
            codes=("not_found", "too_many_streams", "follow_unavailable"),
        ),
    )


_STEP_EXAMPLE = {
    "step": 1,
    "id": 1071,
    "step_id": "test",
    "name": "Test",
    "run": "make test",
    "uses": None,
    "status": "completed",
    "conclusion": "failure",
    "started_at": "2026-05-10T21:00:00Z",
    "completed_at": "2026-05-10T21:00:30Z",
    "log_bytes": 5120,
    "log_is_truncated": False,
    "annotation_count": 1,
}
_ANNOTATION_EXAMPLE = {
    "id": 7,
    "step": 1,
    "level": "error",
    "title": "assert failed",
    "message": "expected 3, got 4",
    "path": "tests/test_sum.py",
    "start_line": 12,
    "end_line": None,
    "start_column": None,
    "end_column": None,
}
LIST_STEPS = operation_docs(
    "list_job_steps",
    responses=serializers.JobStepsOutput,
    examples=[response_example("failed step", {"results": [_STEP_EXAMPLE]})],
    codes=("not_found",),
)
LIST_ANNOTATIONS = operation_docs(
    "list_job_annotations",
    responses=serializers.AnnotationsOutput,
    parameters=[AFTER_ANNOTATION],
    examples=[response_example("an error", {"results": [_ANNOTATION_EXAMPLE], "next_after": None})],
    codes=("not_found",),
)

RERUN_JOB = operation_docs(
    "rerun_job",
    request=serializers.RerunJobInput,
    responses={201: serializers.RerunJobOutput},
    parameters=[IDEMPOTENCY_KEY, LOCATION, REPLAYED_CREATED],
    examples=[
        request_example("a longer time limit", {"spec": {"timeout_seconds": 1800}, "reason": "it was too short"})
    ],
    codes=(
        *("not_found", "not_retryable", "feature_not_enabled", "project_not_enabled", "repository_not_allowed"),
        *("timeout_above_plan", "priority_forbidden", "idempotency_conflict", *QUOTA_CODES),
        "too_many_concurrency_keys",
    ),
)

document_runtime_jobs = _document(
    _JobDocs(
        noun="runtime_job",
        submit=serializers.SubmitRuntimeJobInput,
        job=serializers.RuntimeJobOutput,
        listed=serializers.RuntimeJobListItemOutput,
        detail=serializers.RuntimeJobDetailOutput,
        entries=serializers.RuntimeJobEntriesOutput,
        submit_examples=[SUBMIT_RUNTIME_JOB],
        job_fields=JOB_FIELDS,
    )
)
document_any_jobs = _document(
    _JobDocs(
        noun="job",
        submit=serializers.SubmitAnyJobInput,
        job=serializers.AnyJobOutput,
        listed=serializers.AnyJobListItemOutput,
        detail=serializers.AnyJobDetailOutput,
        entries=serializers.AnyJobEntriesOutput,
        submit_examples=[SUBMIT_STEPS_JOB, SUBMIT_ANY_JOB],
        job_fields=_ANY_JOB_FIELDS,
    )
)
