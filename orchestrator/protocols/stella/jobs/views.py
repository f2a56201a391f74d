"""Views of `/api/jobs`: list, read, submit, cancel, the graph of dependencies, attestations."""

import logging
from typing import Any

from django.conf import settings
from django.utils import timezone
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.models import Lease
from orchestrator.core.idempotency import key_of
from orchestrator.core.principals import ClientPrincipal
from orchestrator.evidence.attestations import attestation_of
from orchestrator.evidence.signing_keys import SigningKeyError
from orchestrator.http.api.calls import ApiAnswer, ApiCall, respond
from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.jobs import openapi, submits, wire
from orchestrator.protocols.stella.jobs.filters import OrchestrationJobFilters
from orchestrator.protocols.stella.jobs.pages import OrchestrationJobPages, in_blocked_lanes, index_parts
from orchestrator.protocols.stella.jobs.serializers import CancelOrchestrationJobInput, SubmitOrchestrationJobInput
from orchestrator.protocols.stella.openapi import StellaSchema
from orchestrator.protocols.stella.tenants import tenants_of
from orchestrator.protocols.stella.visible_jobs import UUID_PATTERN, attempts_of, newest_attempt, newest_attempts
from orchestrator.selectors.job_graph import MAX_NODES, dependents_of, graph_of
from orchestrator.selectors.orchestration_statuses import standings_of
from orchestrator.services import cancellation
from orchestrator.services import submission as submission_operations
from orchestrator.services.dependencies import get_roots
from orchestrator.services.transitions import OperationResult
from runtime_jobs.errors import AlreadyFinal
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import JobQuerySet
from runtime_jobs.models.tenants import Scope
from runtime_jobs.orchestration_status import OrchestrationStatus
from runtime_jobs.specs import configured_policy

log = logging.getLogger(__name__)

SCOPES = {"create": Scope.JOBS_WRITE, "cancel": Scope.ORCH_OPERATE}
MAX_RETRIES_MEANWHILE = 3


def submit(call: ApiCall) -> ApiAnswer:
    """Queue a new job."""
    validated = parse(SubmitOrchestrationJobInput, call.body)
    submission = submits.submission_of(call, validated)
    idempotency = submits.idempotency_of(call, validated)
    outcome = submission_operations.submit(
        submission,
        policy=configured_policy(submission.spec.job_type),
        default_pool=settings.DEFAULT_POOL,
        actor=client_of(call).actor,
        idempotency=idempotency,
    )
    job = outcome.job
    headers = {"Location": f"/api/jobs/{wire.job_uuid(job.root_job_ulid)}"}
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    return ApiAnswer(
        _serialize(job) | wire.serialize_request(job, idempotency.key if idempotency else None), 201, headers
    )


class OrchestrationJobViewSet(StrictQueryMixin, GenericViewSet):
    """Jobs of the tenants that the caller may see. Any other job is answered 404, as if it did not exist."""

    lookup_url_kwarg = "job_id"
    lookup_value_regex = UUID_PATTERN
    http_method_names = ["get", "head", "post"]
    schema = StellaSchema()
    filterset_class = OrchestrationJobFilters
    pagination_class = OrchestrationJobPages

    def query_parameters(self) -> frozenset[str]:
        if self.action == "list":
            return LIST_PARAMETERS | set(OrchestrationJobFilters.base_filters)
        return frozenset()

    def get_permissions(self) -> list[Any]:
        return [HasScope(SCOPES.get(self.action, Scope.ORCH_READ))]

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def get_queryset(self) -> JobQuerySet:
        if getattr(self, "swagger_fake_view", False):
            return Job.objects.all().none()
        return newest_attempts(tenants_of(client_of(self.request), self.request.query_params.get("tenant")))

    @openapi.LIST_JOBS
    def list(self, request: Request) -> Response:
        """List jobs, newest first. A page may have fewer jobs than `limit` and a `next` all the same."""
        jobs: Any = self.filter_queryset(self.get_queryset())
        pages: Any = self.paginator
        status, job_type = request.query_params.get("status"), request.query_params.get("jobType")
        tenants = tenants_of(client_of(request), request.query_params.get("tenant"))
        if status == OrchestrationStatus.THROTTLED:
            jobs = in_blocked_lanes(jobs, tenants)
        page = pages.read_page(jobs, request, status=status, parts=index_parts(status, tenants, job_type))
        return self.get_paginated_response([wire.serialize_listed_job(*listed) for listed in page])

    @openapi.SUBMIT_JOB
    def create(self, request: Request) -> Response:
        """Queue a new job. The same request with the same idempotency key returns the first job."""
        return respond(submit, request)

    @openapi.GET_JOB
    def retrieve(self, request: Request, job_id: str) -> Response:
        """Return one job with its attempts, dependencies, dependents, replays, and why it waits or failed."""
        return Response(_serialize_whole(attempts_of(client_of(request), job_id)))

    @openapi.CANCEL_JOB
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, job_id: str) -> Response:
        """Cancel a waiting job (200), or request the worker of a running one to stop (202). Repeats change nothing."""
        validated = parse(CancelOrchestrationJobInput, body_of(request))
        outcome = _cancel(client_of(request), job_id, validated["reason"])
        return Response(_serialize(outcome.job), status=202 if outcome.accepted else 200)

    @openapi.GET_GRAPH
    @action(detail=True, pagination_class=None, filterset_class=None)
    def graph(self, request: Request, job_id: str) -> Response:
        """Return the jobs on which the job depends and those that depend on it, with the critical path."""
        graph = graph_of(newest_attempt(client_of(request), job_id))
        standings = standings_of(list(graph.jobs.values()))
        return Response(wire.serialize_graph(graph, standings, timezone.now()))

    @openapi.GET_ATTESTATION
    @action(detail=True, pagination_class=None, filterset_class=None)
    def attestation(self, request: Request, job_id: str) -> Response:
        """Return the signed provenance of the newest attempt, which has ended: a DSSE envelope."""
        try:
            return Response(attestation_of(newest_attempt(client_of(request), job_id)))
        except SigningKeyError as error:
            log.error("nothing can be signed: %s", error)  # noqa: TRY400 no bug
            raise ApiError(503, "signing_unavailable", "This server has no key that may sign.") from None


def _cancel(caller: ClientPrincipal, job_id: str, message: str) -> OperationResult:
    """Cancel the newest attempt of a job, and the one that follows it if it failed meanwhile.

    Raises:
        NotFound: There is no such job, or the caller may not see it.
        AlreadyFinal: The job has ended otherwise.
    """
    job = newest_attempt(caller, job_id)
    for _ in range(MAX_RETRIES_MEANWHILE):
        try:
            return cancellation.cancel(
                job_ulid=job.job_ulid,
                actor=caller.actor,
                deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
                message=message,
            )
        except AlreadyFinal:
            newer = newest_attempt(caller, job_id)
            if newer.pk == job.pk:
                raise
            job = newer
    raise AlreadyFinal("The job has failed and was queued again several times. Repeat the request.")


def _serialize(job: Job) -> dict[str, Any]:
    return wire.serialize_listed_job(job, standings_of([job])[job.pk], job.spec.get("requested_at"))


def _serialize_whole(attempts: list[Job]) -> dict[str, Any]:
    newest = attempts[-1]
    standing = standings_of([newest])[newest.pk]
    names = [job.job_ulid for job in attempts]
    leases = Lease.objects.filter(job_id__in=names).order_by("job_id", "-fence").distinct("job_id")
    replays = Job.objects.filter(replay_of_job_ulid=newest.root_job_ulid, attempt=1).order_by("-id")
    details = wire.serialize_details(
        newest,
        standing,
        idempotency_key=key_of(newest.root_job_ulid),
        attempts=attempts,
        workers={str(lease.job_id): lease.worker_id for lease in leases.only("job_id", "worker_id")},
        dependencies=get_roots(newest),
        dependents=dependents_of(newest),
        replays=list(replays.values_list("job_ulid", flat=True)[:MAX_NODES]),
    )
    return wire.serialize_listed_job(newest, standing, newest.spec.get("requested_at")) | details
