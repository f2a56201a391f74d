"""What the OpenAPI document says of each operation on jobs: its id, bodies, headers, examples and codes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema_view
from rest_framework.serializers import Serializer

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native import answers, answers_of_many, examples, examples_of_many, requests
from orchestrator.protocols.native.parameters import AFTER, FOLLOW, KEY, LOCATION, REPLAYED, REPLAYED_MANY

Described = Callable[[Any], Any]


class _View(NamedTuple):
    """A view of jobs: the noun that makes the ids of its operations, its bodies, their examples."""

    noun: str
    submit: type[Serializer]
    shown: type[Serializer]
    listed: type[Serializer]
    detail: type[Serializer]
    results: type[Serializer]
    submits: list[OpenApiExample]
    job: OpenApiExample
    listed_job: OpenApiExample
    job_in_detail: OpenApiExample
    bulk: list[OpenApiExample]


def _of_jobs(view: _View) -> Described:
    noun = view.noun
    return extend_schema_view(
        create=_create(view),
        bulk=_bulk(view),
        list=operation_docs(f"list_{noun}s", responses=view.listed(many=True), examples=[view.listed_job]),
        retrieve=operation_docs(
            f"get_{noun}", responses=view.detail, examples=[view.job_in_detail], codes=("not_found",)
        ),
        cancel=_cancel(view),
        retry=_retry(view),
        events=operation_docs(
            f"list_{noun}_events",
            responses=answers.EventsShown,
            parameters=[AFTER],
            examples=[examples.EVENTS],
            codes=("not_found",),
        ),
        logs=operation_docs(
            f"read_{noun}_logs",
            responses={(200, "text/plain"): OpenApiTypes.STR},
            parameters=[FOLLOW],
            codes=("not_found", "too_many_streams", "follow_unavailable"),
        ),
    )


QUOTA = ("queue_full", "submit_rate_exceeded")


def _create(view: _View) -> Described:
    return operation_docs(
        f"submit_{view.noun}",
        request=view.submit,
        responses={201: view.shown},
        parameters=[KEY, LOCATION, REPLAYED],
        examples=[*view.submits, view.job],
        codes=(
            *("not_found", "feature_not_enabled", "project_not_enabled", "repository_not_allowed"),
            *("pool_forbidden", "timeout_above_plan", "invalid_dependency"),
            *("priority_forbidden", "idempotency_conflict", *QUOTA, "too_many_concurrency_keys"),
        ),
    )


def _bulk(view: _View) -> Described:
    became = "What became of each: 201 with the job, or a refusal."
    return operation_docs(
        f"submit_{view.noun}s",
        request=requests.ManyJobs,
        responses={200: OpenApiResponse(view.results, description=became)},
        parameters=[KEY, REPLAYED_MANY],
        examples=view.bulk,
        codes=("idempotency_conflict", *QUOTA),
    )


def _cancel(view: _View) -> Described:
    return operation_docs(
        f"cancel_{view.noun}",
        request=requests.CancelJob,
        responses={
            200: OpenApiResponse(view.shown, description="Canceled, now or before."),
            202: OpenApiResponse(view.shown, description="Asked for; its worker hears it with the next heartbeat."),
        },
        examples=[examples.CANCEL],
        codes=("not_found", "already_final"),
    )


def _retry(view: _View) -> Described:
    return operation_docs(
        f"retry_{view.noun}",
        request=requests.RetryJob,
        responses={201: view.shown},
        parameters=[KEY, LOCATION, REPLAYED],
        examples=[examples.RETRY],
        codes=("not_found", "not_final", "already_final", "already_retried", "idempotency_conflict", *QUOTA),
    )


of_runtime_jobs = _of_jobs(
    _View(
        noun="runtime_job",
        submit=requests.SubmitJob,
        shown=answers.JobShown,
        listed=answers.JobListed,
        detail=answers.JobInDetail,
        results=answers_of_many.JobResults,
        submits=[examples.SUBMIT],
        job=examples.JOB,
        listed_job=examples.JOB_LISTED,
        job_in_detail=examples.JOB_IN_DETAIL,
        bulk=[examples_of_many.SUBMIT_MANY, examples_of_many.SUBMITTED_MANY],
    )
)
of_any_jobs = _of_jobs(
    _View(
        noun="job",
        submit=requests.SubmitAny,
        shown=answers.AnyJobShown,
        listed=answers.AnyJobListed,
        detail=answers.AnyJobInDetail,
        results=answers_of_many.AnyJobResults,
        submits=[examples.SUBMIT_STEPS, examples.SUBMIT_ANY],
        job=examples.ANY_JOB,
        listed_job=examples.ANY_JOB_LISTED,
        job_in_detail=examples.ANY_JOB_IN_DETAIL,
        bulk=[examples_of_many.SUBMIT_MANY_ANY, examples_of_many.SUBMITTED_MANY_ANY],
    )
)
