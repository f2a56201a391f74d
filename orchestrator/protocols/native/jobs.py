"""`/v1/runtime/jobs`: submit, list, look, cancel, retry, and what a job told on its way (document 000)."""

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator import lifecycle
from orchestrator.access.addresses import address_of
from orchestrator.access.arrivals import arrival_of
from orchestrator.access.filtering import OF_EVERY_LIST
from orchestrator.access.headers import repeatable
from orchestrator.access.parsing import body_of
from orchestrator.access.permissions import may
from orchestrator.access.principals import client_of
from orchestrator.access.queries import StrictQuery, invalid_query
from orchestrator.access.rendering import PlainText
from orchestrator.feeds import logs
from orchestrator.lifecycle import Outcome, Submission
from orchestrator.protocols.native import operations, wire
from orchestrator.protocols.native.filters import JobFilters
from orchestrator.protocols.native.requests import CancelJob, RetryJob, SubmitJob
from orchestrator.queue import position
from runtime_jobs.errors import NotFound
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import RUNTIME, runtime_policy

EVENTS_LIMIT = 500
SCOPES = {"create": Scope.JOBS_WRITE, "cancel": Scope.JOBS_WRITE, "retry": Scope.ORCH_OPERATE}


class JobViewSet(StrictQuery, GenericViewSet):
    """Runtime jobs of the organizations that the caller may see; what it may not see does not exist."""

    lookup_field = "job_ulid"
    lookup_url_kwarg = "job_id"
    lookup_value_regex = f"rtj_{ULID_PATTERN}"
    http_method_names = ["get", "head", "post"]
    filterset_class = JobFilters

    def query_parameters(self) -> frozenset[str]:
        of_list = OF_EVERY_LIST | set(JobFilters.base_filters)
        return {"list": of_list, "events": frozenset({"after"}), "logs": frozenset({"follow"})}.get(
            self.action, frozenset()
        )

    def get_permissions(self) -> list[Any]:
        return [may(SCOPES.get(self.action, Scope.JOBS_READ))()]

    def get_queryset(self) -> QuerySet[Job]:
        if getattr(self, "swagger_fake_view", False):
            return Job.objects.none()
        jobs = Job.objects.of_type(RUNTIME)
        mine = client_of(self.request).organizations
        return jobs if mine is None else jobs.of_organizations(list(mine))

    @operations.SUBMIT
    def create(self, request: Request) -> Response:
        """Queue a new job. With an Idempotency-Key, the same request again answers the first job."""
        body = SubmitJob(data=body_of(request))
        body.is_valid(raise_exception=True)
        if not client_of(request).sees(body.validated_data["org_slug"]):
            raise NotFound("There is no such organization.")
        outcome = lifecycle.submit(
            _submission(request, body),
            policy=runtime_policy(
                lease_ttl_seconds=settings.LEASE_TTL_SECONDS,
                heartbeat_interval_seconds=settings.HEARTBEAT_INTERVAL_SECONDS,
                acknowledge_within_seconds=settings.ACKNOWLEDGE_WITHIN_SECONDS,
                max_requeues=settings.MAX_REQUEUES,
            ),
            default_pool=settings.DEFAULT_POOL,
            by=client_of(request).actor,
            once=repeatable(request, "submit", body_of(request)),
        )
        return _created(outcome)

    @operations.LIST
    def list(self, request: Request) -> Response:
        """The jobs, newest first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([wire.job(row) for row in page or []])

    @operations.SHOW
    def retrieve(self, request: Request, job_id: str) -> Response:
        """One job, with its newest event, its place in the queue and its newer attempts."""
        return Response(_in_detail(self.get_object()))

    @operations.CANCEL
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, job_id: str) -> Response:
        """Cancel a job that waits (200), or ask the worker of one that runs (202). Repeats change nothing."""
        body = CancelJob(data=body_of(request))
        body.is_valid(raise_exception=True)
        outcome = lifecycle.cancel(
            job_ulid=self.get_object().job_ulid,
            by=client_of(request).actor,
            deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
            message=body.validated_data["reason"],
        )
        return Response(wire.job(outcome.job), status=202 if outcome.accepted else 200)

    @operations.RETRY
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, job_id: str) -> Response:
        """Queue a new attempt of a job that failed or was canceled: a new job that points back."""
        body = RetryJob(data=body_of(request))
        body.is_valid(raise_exception=True)
        found = self.get_object().job_ulid
        outcome = lifecycle.retry(
            job_ulid=found,
            by=client_of(request).actor,
            reason=body.validated_data["reason"],
            once=repeatable(request, f"retry {found}", body_of(request)),
        )
        return _created(outcome)

    @operations.EVENTS
    @action(detail=True, pagination_class=None, filterset_class=None)
    def events(self, request: Request, job_id: str) -> Response:
        """What happened to the job, in order."""
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise invalid_query("after", "A whole number.")
        rows = list(JobEvent.objects.of(self.get_object().job_ulid).filter(seq__gt=int(after))[: EVENTS_LIMIT + 1])
        more = rows[EVENTS_LIMIT - 1].seq if len(rows) > EVENTS_LIMIT else None
        return Response({"results": [wire.event(row) for row in rows[:EVENTS_LIMIT]], "next_after": more})

    @operations.LOGS
    @action(detail=True, pagination_class=None, filterset_class=None, renderer_classes=[JSONRenderer, PlainText])
    def logs(self, request: Request, job_id: str) -> Any:
        """What the job has printed so far, as plain text; with `follow=1` until it has ended."""
        follow = request.query_params.get("follow", "0")
        if follow not in {"0", "1"}:
            raise invalid_query("follow", "0 or 1.")
        return logs.as_text(self.get_object(), follow=follow == "1", request=request._request)  # noqa: SLF001 DRF has no name for it


def _submission(request: Request, body: SubmitJob) -> Submission:
    sent = body.validated_data
    return Submission(
        org_slug=sent["org_slug"],
        project_slug=sent["project_slug"],
        spec=body.spec(),
        trigger_kind=sent["trigger"]["kind"],
        trigger_actor=sent["trigger"]["actor"],
        correlation_id=arrival_of(request).correlation_id,
        source_address=address_of(request),
    )


def _created(outcome: Outcome) -> Response:
    headers = {"Location": f"/v1/runtime/jobs/{outcome.job.job_ulid}"}
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Response(wire.job(outcome.job), status=201, headers=headers)


def _in_detail(row: Job) -> dict[str, Any]:
    newer = Job.objects.filter(root_job_ulid=row.root_job_ulid, attempt__gt=row.attempt).order_by("attempt")
    return wire.job_in_detail(
        row,
        last_event=row.events.order_by("-seq").first(),
        queue_position=position(row),
        retries=list(newer.values_list("job_ulid", flat=True)),
    )
