"""Views of `/v1/runtime/jobs` (document 000) and `/v1/jobs` (jobs of all types)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator.core.idempotency import key_of
from orchestrator.http.api.calls import ApiAnswer, ApiCall, CombinedCall, respond
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin, invalid_query
from orchestrator.http.asgi.stream_responses import EventStreamRenderer, PlainTextRenderer
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.errors import error_result, to_recorded_error
from orchestrator.protocols.native.jobs import reruns, wire
from orchestrator.protocols.native.jobs.filters import AnyJobFilters, RuntimeJobFilters
from orchestrator.protocols.native.jobs.logs import event_response, log_response, step_log_response
from orchestrator.protocols.native.jobs.openapi import (
    LIST_ANNOTATIONS,
    LIST_STEPS,
    RERUN_JOB,
    document_any_jobs,
    document_runtime_jobs,
)
from orchestrator.protocols.native.jobs.serializers import (
    BulkSubmitInput,
    CancelJobInput,
    RetryJobInput,
    SubmitAnyJobInput,
    SubmitInput,
    SubmitRuntimeJobInput,
)
from orchestrator.protocols.native.organizations import NO_ORGANIZATION
from orchestrator.selectors.job_steps import annotations_of, steps_of
from orchestrator.selectors.pending_reasons.service import pending_for
from orchestrator.services import bulk_submit, cancellation, retries
from orchestrator.services.bulk_submit import SubmitRequest
from orchestrator.services.concurrency import ConcurrencyGroup, OnConflict
from orchestrator.services.dependencies import get_roots
from orchestrator.services.submission import Submission
from orchestrator.services.transitions import OperationResult
from runtime_jobs.errors import LifecycleError, NotFound
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.models import FailureExplanation, Job, JobEvent
from runtime_jobs.models.tenants import Scope
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import JOB_TYPES, RUNTIME, configured_policy

EVENTS_PER_PAGE = 500
SCOPES = {
    **dict.fromkeys(("create", "bulk", "cancel", "rerun"), Scope.JOBS_WRITE),
    "retry": Scope.ORCH_OPERATE,
}
ANNOTATIONS_PER_PAGE = 500
QUERY_PARAMETERS = {
    "events": frozenset({"after"}),
    "logs": frozenset({"follow", "step"}),
    "log_events": frozenset({"after"}),
    "annotations": frozenset({"after"}),
}


@dataclass(frozen=True)
class JobCollection:
    """The difference between `/v1/runtime/jobs` and `/v1/jobs`.

    Attributes:
        path: Path of the collection, for `Location`.
        operation: Scope of idempotency keys of submits.
        submit_serializer: Reads the body of a submit.
        serialize: Returns the fields that a job has in every response of the collection.
    """

    path: str
    operation: str
    submit_serializer: type[SubmitInput]
    serialize: Callable[[Job], dict[str, Any]]


RUNTIME_JOBS = JobCollection("/v1/runtime/jobs", "submit", SubmitRuntimeJobInput, wire.serialize_runtime_job)
ANY_JOBS = JobCollection("/v1/jobs", "submit any", SubmitAnyJobInput, wire.serialize_any_job)


@dataclass(frozen=True)
class SubmitCall:
    """A submit, and the collection to which it was sent."""

    request: SubmitRequest
    collection: JobCollection


def _read_submit(call: ApiCall, collection: JobCollection) -> SubmitCall:
    submission = _submission(call, collection, call.body)
    key = idempotent_request(call, collection.operation, call.body)
    return SubmitCall(SubmitRequest(submission, client_of(call).actor, key), collection)


def _run_submit(calls: Sequence[SubmitCall]) -> Sequence[OperationResult | Exception]:
    requests = [call.request for call in calls]
    return bulk_submit.submit_together(requests, policy_for=configured_policy, default_pool=settings.DEFAULT_POOL)


def _locks_no_other_rows(calls: Sequence[SubmitCall]) -> list[bool]:
    return [not call.request.locks_other_rows for call in calls]


def _answer_submit(call: SubmitCall, outcome: OperationResult) -> ApiAnswer:
    return _created(outcome, call.collection)


# Queue a new job.
submit = CombinedCall(_read_submit, _run_submit, _answer_submit, _locks_no_other_rows)


def submit_bulk(call: ApiCall, collection: JobCollection) -> ApiAnswer:
    """Queue many jobs, each accepted or refused separately."""
    outcome = bulk_submit.submit_many(
        [_bulk_entry(call, collection, entry) for entry in parse(BulkSubmitInput, call.body)["jobs"]],
        policy_for=configured_policy,
        default_pool=settings.DEFAULT_POOL,
        actor=client_of(call).actor,
        idempotency=idempotent_request(call, f"{collection.operation} bulk", call.body),
    )
    results = [
        error_result(result, call.context.request_id)
        if isinstance(result, Exception)
        else {"status": 201, "body": collection.serialize(result)}
        for result in outcome.results
    ]
    return ApiAnswer({"results": results}, headers={"Idempotency-Replayed": "true"} if outcome.replayed else {})


def _bulk_entry(call: ApiCall, collection: JobCollection, body: dict[str, Any]) -> Submission | LifecycleError:
    try:
        return _submission(call, collection, body)
    except LifecycleError as error:
        return error
    except ValidationError as error:
        return to_recorded_error(error, call.context.request_id)


def _submission(call: ApiCall, collection: JobCollection, body: dict[str, Any]) -> Submission:
    """Validate the body of one submit.

    Raises:
        ValidationError: The body is invalid.
        NotFound: The caller may not see the organization, or there is none.
    """
    validated = parse(collection.submit_serializer, body)
    if not client_of(call).sees(validated["org_slug"]):
        raise NotFound(NO_ORGANIZATION)
    return Submission(
        org_slug=validated["org_slug"],
        project_slug=validated["project_slug"],
        spec=collection.submit_serializer.job_spec(validated),
        trigger_kind=validated["trigger"]["kind"],
        trigger_actor=validated["trigger"]["actor"],
        correlation_id=call.context.correlation_id,
        source_address=call.address,
        pool=validated.get("pool"),
        depends_on=tuple(validated["depends_on"]),
        priority=PRIORITIES[validated["priority"]] if validated["priority"] else None,
        group=_concurrency_group(validated["concurrency"]),
    )


def _concurrency_group(validated: dict[str, str] | None) -> ConcurrencyGroup | None:
    return ConcurrencyGroup(validated["key"], OnConflict(validated["when_busy"])) if validated else None


def _created(outcome: OperationResult, collection: JobCollection) -> ApiAnswer:
    headers = {"Location": f"{collection.path}/{outcome.job.job_ulid}"}
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    return ApiAnswer(collection.serialize(outcome.job), 201, headers)


class BaseJobViewSet(StrictQueryMixin, GenericViewSet):
    """Jobs of the organizations that the caller may see. Any other job is answered 404, as if it did not exist.

    Attributes:
        job_types: Job types of this view.
        collection: What the two views have in common with the functions above.
    """

    job_types: tuple[str, ...]
    collection: JobCollection

    lookup_field = "job_ulid"
    lookup_url_kwarg = "job_id"
    lookup_value_regex = f"rtj_{ULID_PATTERN}"
    http_method_names = ["get", "head", "post"]
    filterset_class = RuntimeJobFilters

    def query_parameters(self) -> frozenset[str]:
        if self.action == "list":
            return LIST_PARAMETERS | set(self.filterset_class.base_filters)
        return QUERY_PARAMETERS.get(self.action, frozenset())

    def get_permissions(self) -> list[Any]:
        return [HasScope(SCOPES.get(self.action, Scope.JOBS_READ))]

    def get_queryset(self) -> QuerySet[Job]:
        if getattr(self, "swagger_fake_view", False):
            return Job.objects.none()
        jobs = Job.objects.select_related("batch").of_types(self.job_types)
        organizations = client_of(self.request).organizations
        return jobs if organizations is None else jobs.of_organizations(list(organizations))

    def create(self, request: Request) -> Response:
        """Queue a new job. A repeated request with the same Idempotency-Key returns the first job."""
        return respond(submit, request, self.collection)

    @action(detail=False, methods=["post"], pagination_class=None, filterset_class=None)
    def bulk(self, request: Request) -> Response:
        """Queue up to 500 jobs. Each is accepted or refused separately."""
        return respond(submit_bulk, request, self.collection)

    def list(self, request: Request) -> Response:
        """List jobs, newest first, each with its queue position and the reason why it waits."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        pending = pending_for(page)
        return self.get_paginated_response(
            [self.collection.serialize(job) | wire.serialize_pending_state(pending[job.pk]) for job in page]
        )

    def retrieve(self, request: Request, job_id: str) -> Response:
        """Return one job with its newest event, queue position, pending reason, retries and artifacts."""
        job = self.get_object()
        pending = wire.serialize_pending_state(pending_for([job])[job.pk])
        return Response(self.collection.serialize(job) | pending | _details(job))

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, job_id: str) -> Response:
        """Cancel a waiting job (200), or request the worker of a leased job to stop (202). Repeats change nothing."""
        validated = parse(CancelJobInput, body_of(request))
        outcome = cancellation.cancel(
            job_ulid=self.get_object().job_ulid,
            actor=client_of(request).actor,
            deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
            message=validated["reason"],
        )
        return Response(self.collection.serialize(outcome.job), status=202 if outcome.accepted else 200)

    @action(detail=True, methods=["post"])
    def retry(self, request: Request, job_id: str) -> Response:
        """Queue a new attempt of a failed or canceled job. The new job has the old one in `retry_of`."""
        validated = parse(RetryJobInput, body_of(request))
        job_ulid = self.get_object().job_ulid
        outcome = retries.retry(
            job_ulid=job_ulid,
            actor=client_of(request).actor,
            reason=validated["reason"],
            idempotency=idempotent_request(request, f"retry {job_ulid}", body_of(request)),
        )
        created = _created(outcome, self.collection)
        return Response(created.data, status=created.status, headers=created.headers)

    @action(detail=True, pagination_class=None, filterset_class=None)
    def events(self, request: Request, job_id: str) -> Response:
        """List the events of the job in order, up to 500 per page."""
        events = JobEvent.objects.of(self.get_object().job_ulid).filter(seq__gt=_after(request))
        rows = list(events[: EVENTS_PER_PAGE + 1])
        next_after = rows[EVENTS_PER_PAGE - 1].seq if len(rows) > EVENTS_PER_PAGE else None
        results = [wire.serialize_event(event) for event in rows[:EVENTS_PER_PAGE]]
        return Response({"results": results, "next_after": next_after})

    @action(
        detail=True, pagination_class=None, filterset_class=None, renderer_classes=[JSONRenderer, PlainTextRenderer]
    )
    def logs(self, request: Request, job_id: str) -> Any:
        """Return the log of the job or of one step as text. With `follow=1` it continues until the job has ended."""
        follow, step = request.query_params.get("follow", "0"), request.query_params.get("step")
        if follow not in {"0", "1"}:
            raise invalid_query("follow", "Must be 0 or 1.")
        if step is None:
            return log_response(self.get_object(), follow=follow == "1", request=request)
        if not (step.isascii() and step.isdigit() and len(step) < 10):
            raise invalid_query("step", "Must be the number of a step, from 0.")
        if follow == "1":
            raise invalid_query("follow", "Must be 0 where `step` is given. Follow all steps by `logs/stream` instead.")
        return step_log_response(self.get_object(), int(step), request=request)

    @action(
        detail=True,
        url_path="logs/stream",
        pagination_class=None,
        filterset_class=None,
        renderer_classes=[JSONRenderer, EventStreamRenderer],
    )
    def log_events(self, request: Request, job_id: str) -> Any:
        """Follow the log and the steps of the job as Server-Sent Events: `chunk`, `step` and `end`."""
        return event_response(self.get_object(), request)


@document_runtime_jobs
class RuntimeJobViewSet(BaseJobViewSet):
    """Jobs of type `runtime` (document 000)."""

    job_types = (RUNTIME,)
    collection = RUNTIME_JOBS


@document_any_jobs
class AnyJobViewSet(BaseJobViewSet):
    """Jobs of all types."""

    job_types = tuple(JOB_TYPES)
    collection = ANY_JOBS
    filterset_class = AnyJobFilters

    @RERUN_JOB
    @action(detail=True, methods=["post"], pagination_class=None, filterset_class=None)
    def rerun(self, request: Request, job_id: str) -> Response:
        """Queue a new job with the spec of this one, changed by a merge patch. It is no replay of this job."""
        return respond(reruns.rerun, request, self.get_object())

    @LIST_STEPS
    @action(detail=True, pagination_class=None, filterset_class=None)
    def steps(self, request: Request, job_id: str) -> Response:
        """List the steps of the job in order, each with its status and the size of its log."""
        return Response({"results": [wire.serialize_step(step) for step in steps_of(self.get_object().job_ulid)]})

    @LIST_ANNOTATIONS
    @action(detail=True, pagination_class=None, filterset_class=None)
    def annotations(self, request: Request, job_id: str) -> Response:
        """List the notices, warnings and errors that the steps have printed as commands, up to 500 per page."""
        job_ulid = self.get_object().job_ulid
        rows = annotations_of(job_ulid, after=_after(request), limit=ANNOTATIONS_PER_PAGE + 1)
        next_after = rows[ANNOTATIONS_PER_PAGE - 1].pk if len(rows) > ANNOTATIONS_PER_PAGE else None
        results = [wire.serialize_annotation(annotation) for annotation in rows[:ANNOTATIONS_PER_PAGE]]
        return Response({"results": results, "next_after": next_after})


def _after(request: Request) -> int:
    """Return the position of a page in a list without cursors."""
    after = request.query_params.get("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise invalid_query("after", "Must be a whole number of at most 18 digits.")
    return int(after)


def _details(job: Job) -> dict[str, Any]:
    newer = Job.objects.filter(root_job_ulid=job.root_job_ulid, attempt__gt=job.attempt).order_by("attempt")
    return wire.serialize_details(
        job,
        idempotency_key=key_of(job.job_ulid),
        last_event=job.events.order_by("-seq").first(),
        depends_on=get_roots(job),
        retries=list(newer.values_list("job_ulid", flat=True)),
        artifacts=list(job.artifacts.order_by("pk")),
        explanation=FailureExplanation.objects.filter(job=job).first(),
    )
