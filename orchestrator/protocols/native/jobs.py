"""`/v1/runtime/jobs` (document 000) and `/v1/jobs`, where all types are: submit, list, look, cancel, retry, and what a
job told on its way."""

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator import services
from orchestrator.http.api.fields import parse
from orchestrator.http.api.filtering import OF_EVERY_LIST
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.job_policies import policy_of
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin, invalid_query
from orchestrator.http.api.renderers import PlainText
from orchestrator.http.auth.permissions import requires_scope
from orchestrator.http.auth.principals import client_of
from orchestrator.http.client_ip import client_address
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.native import job_operations as operations
from orchestrator.protocols.native import wire
from orchestrator.protocols.native.answering import refusal, wrong
from orchestrator.protocols.native.filters import AnyJobFilters, JobFilters
from orchestrator.protocols.native.job_logs import log_response
from orchestrator.protocols.native.requests import CancelJob, ManyJobs, RetryJob, Submit, SubmitAny, SubmitJob
from orchestrator.selectors.pending_reasons.service import pending_for
from orchestrator.services import ConcurrencyGroup, OnConflict, OperationResult, Submission
from orchestrator.services.dependencies import get_roots
from runtime_jobs.errors import LifecycleError, NotFound
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.models import FailureExplanation, Job, JobEvent
from runtime_jobs.models.tenants import Scope
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import JOB_TYPES, RUNTIME

EVENTS_LIMIT = 500
SCOPES = {"create": Scope.JOBS_WRITE, "bulk": Scope.JOBS_WRITE, "cancel": Scope.JOBS_WRITE, "retry": Scope.ORCH_OPERATE}


class Jobs(StrictQueryMixin, GenericViewSet):
    """Jobs of the organizations that the caller may see; what it may not see does not exist."""

    job_types: tuple[str, ...]
    submitted: type[Submit]
    address: str
    operation: str  # of the submit, for its idempotency keys

    lookup_field = "job_ulid"
    lookup_url_kwarg = "job_id"
    lookup_value_regex = f"rtj_{ULID_PATTERN}"
    http_method_names = ["get", "head", "post"]
    filterset_class = JobFilters

    def shown(self, row: Job) -> dict[str, Any]:
        """The job as a list has it."""
        raise NotImplementedError

    def query_parameters(self) -> frozenset[str]:
        if self.action == "list":
            return OF_EVERY_LIST | set(self.filterset_class.base_filters)
        return {"events": frozenset({"after"}), "logs": frozenset({"follow"})}.get(self.action, frozenset())

    def get_permissions(self) -> list[Any]:
        return [requires_scope(SCOPES.get(self.action, Scope.JOBS_READ))()]

    def get_queryset(self) -> QuerySet[Job]:
        if getattr(self, "swagger_fake_view", False):
            return Job.objects.none()
        jobs = Job.objects.select_related("batch").of_types(self.job_types)
        mine = client_of(self.request).organizations
        return jobs if mine is None else jobs.of_organizations(list(mine))

    def create(self, request: Request) -> Response:
        """Queue a new job. With an Idempotency-Key, the same request again answers the first job."""
        submission = self._submission(body_of(request))
        outcome = services.submit(
            submission,
            policy=policy_of(submission.spec.job_type),
            default_pool=settings.DEFAULT_POOL,
            actor=client_of(request).actor,
            idempotency=idempotent_request(request, self.operation, body_of(request)),
        )
        return self._created(outcome)

    @action(detail=False, methods=["post"], pagination_class=None, filterset_class=None)
    def bulk(self, request: Request) -> Response:
        """Queue many jobs, each for itself: one that is refused stops no other."""
        outcome = services.submit_many(
            [self._entry(entry) for entry in parse(ManyJobs, body_of(request))["jobs"]],
            policy_of=policy_of,
            default_pool=settings.DEFAULT_POOL,
            actor=client_of(request).actor,
            idempotency=idempotent_request(request, f"{self.operation} bulk", body_of(request)),
        )
        results = [
            refusal(one, request) if isinstance(one, Exception) else {"status": 201, "body": self.shown(one)}
            for one in outcome.results
        ]
        return Response({"results": results}, headers={"Idempotency-Replayed": "true"} if outcome.replayed else {})

    def _entry(self, sent: dict[str, Any]) -> Submission | LifecycleError:
        try:
            return self._submission(sent)
        except LifecycleError as error:
            return error
        except ValidationError as error:
            return wrong(error, self.request)

    def _submission(self, body: dict[str, Any]) -> Submission:
        """Read one. Raises ValidationError, and NotFound for an organization that the caller does not see."""
        sent = parse(self.submitted, body)
        if not client_of(self.request).sees(sent["org_slug"]):
            raise NotFound("There is no such organization.")
        return Submission(
            org_slug=sent["org_slug"],
            project_slug=sent["project_slug"],
            spec=self.submitted.wanted(sent),
            trigger_kind=sent["trigger"]["kind"],
            trigger_actor=sent["trigger"]["actor"],
            correlation_id=context_of(self.request).correlation_id,
            source_address=client_address(self.request),
            pool=sent.get("pool"),
            depends_on=tuple(sent["depends_on"]),
            priority=PRIORITIES[sent["priority"]] if sent["priority"] else None,
            group=_group(sent["concurrency"]),
        )

    def list(self, request: Request) -> Response:
        """The jobs, newest first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        waiting = pending_for(page)
        return self.get_paginated_response([self.shown(row) | wire.waiting(waiting[row.pk]) for row in page])

    def retrieve(self, request: Request, job_id: str) -> Response:
        """One job, with its newest event, why it waits and its place in the queue, and its newer attempts."""
        row = self.get_object()
        return Response(self.shown(row) | wire.waiting(pending_for([row])[row.pk]) | _details(row))

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, job_id: str) -> Response:
        """Cancel a job that waits (200), or ask the worker of one that runs (202). Repeats change nothing."""
        sent = parse(CancelJob, body_of(request))
        outcome = services.cancel(
            job_ulid=self.get_object().job_ulid,
            actor=client_of(request).actor,
            deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
            message=sent["reason"],
        )
        return Response(self.shown(outcome.job), status=202 if outcome.accepted else 200)

    @action(detail=True, methods=["post"])
    def retry(self, request: Request, job_id: str) -> Response:
        """Queue a new attempt of a job that failed or was canceled: a new job that points back."""
        sent = parse(RetryJob, body_of(request))
        found = self.get_object().job_ulid
        outcome = services.retry(
            job_ulid=found,
            actor=client_of(request).actor,
            reason=sent["reason"],
            idempotency=idempotent_request(request, f"retry {found}", body_of(request)),
        )
        return self._created(outcome)

    @action(detail=True, pagination_class=None, filterset_class=None)
    def events(self, request: Request, job_id: str) -> Response:
        """What happened to the job, in order."""
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise invalid_query("after", "A whole number.")
        rows = list(JobEvent.objects.of(self.get_object().job_ulid).filter(seq__gt=int(after))[: EVENTS_LIMIT + 1])
        more = rows[EVENTS_LIMIT - 1].seq if len(rows) > EVENTS_LIMIT else None
        return Response({"results": [wire.event(row) for row in rows[:EVENTS_LIMIT]], "next_after": more})

    @action(detail=True, pagination_class=None, filterset_class=None, renderer_classes=[JSONRenderer, PlainText])
    def logs(self, request: Request, job_id: str) -> Any:
        """What the job has printed so far, as plain text; with `follow=1` until it has ended."""
        follow = request.query_params.get("follow", "0")
        if follow not in {"0", "1"}:
            raise invalid_query("follow", "0 or 1.")
        return log_response(self.get_object(), follow=follow == "1", request=request)

    def _created(self, outcome: OperationResult) -> Response:
        headers = {"Location": f"{self.address}/{outcome.job.job_ulid}"}
        if outcome.replayed:
            headers["Idempotency-Replayed"] = "true"
        return Response(self.shown(outcome.job), status=201, headers=headers)


@operations.of_runtime_jobs
class JobViewSet(Jobs):
    """Runtime jobs (document 000)."""

    job_types = (RUNTIME,)
    submitted = SubmitJob
    address = "/v1/runtime/jobs"
    operation = "submit"

    def shown(self, row: Job) -> dict[str, Any]:
        return wire.job(row)


@operations.of_any_jobs
class AnyJobViewSet(Jobs):
    """Jobs of every type."""

    job_types = tuple(JOB_TYPES)
    submitted = SubmitAny
    filterset_class = AnyJobFilters
    address = "/v1/jobs"
    operation = "submit any"

    def shown(self, row: Job) -> dict[str, Any]:
        return wire.any_job(row)


def _group(sent: dict[str, str] | None) -> ConcurrencyGroup | None:
    return ConcurrencyGroup(sent["key"], OnConflict(sent["when_busy"])) if sent else None


def _details(row: Job) -> dict[str, Any]:
    newer = Job.objects.filter(root_job_ulid=row.root_job_ulid, attempt__gt=row.attempt).order_by("attempt")
    return wire.details(
        row,
        last_event=row.events.order_by("-seq").first(),
        depends_on=get_roots(row),
        retries=list(newer.values_list("job_ulid", flat=True)),
        artifacts=list(row.artifacts.order_by("pk")),
        explanation=FailureExplanation.objects.filter(job=row).first(),
    )
