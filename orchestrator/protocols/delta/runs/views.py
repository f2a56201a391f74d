"""Views of `/api/v1/runs`: batches as the runs of document 001, for clients with the scopes of jobs."""

from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.http.client_ip import client_address
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.delta import errors
from orchestrator.protocols.delta.openapi import DeltaSchema
from orchestrator.protocols.delta.runs import openapi
from orchestrator.protocols.delta.runs.serializers import CancelRun, RerunRun, StartRun, steps_spec
from orchestrator.protocols.delta.runs.wire import serialize_run
from orchestrator.protocols.delta.states import RUN_STATES
from orchestrator.services import batches, project_defaults
from orchestrator.services.batches import OPTIONAL, BatchJob, BatchOutcome, BatchSubmission, state_of
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.models import Batch, Job, Project
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import RepositorySource, configured_policy


class DeltaRunView(StrictQueryMixin, APIView):
    """Base of the views of runs. A run that the caller may not see is answered 404."""

    schema = DeltaSchema()
    http_method_names: tuple[str, ...] = ("post",)
    scope = Scope.JOBS_WRITE

    def get_permissions(self) -> list[Any]:
        return [HasScope(self.scope)]

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def get_batch(self, batch_ulid: str) -> Batch:
        """Return the batch of the URL.

        Raises:
            NotFound: It does not exist, or the caller may not see it.
        """
        batch = Batch.objects.filter(batch_ulid=batch_ulid).first()
        if batch is None or not client_of(self.request).sees(batch.org_slug):
            raise NotFound("There is no run with this id, or you may not see it.")
        return batch


class RunCreateView(DeltaRunView):
    """`POST /api/v1/runs`."""

    @openapi.START_RUN_DOCS
    def post(self, request: Request) -> Response:
        """Start a run. Without `jobs` it has one job of type `steps`: the configured command of the project."""
        body = StartRun(data=body_of(request))
        body.is_valid(raise_exception=True)
        project = _project(request, body)
        source = _source(body, project)
        outcome = batches.submit_batch(
            _submission(request, body, project, source),
            _jobs(body, project, source),
            policy_for=configured_policy,
            default_pool=settings.DEFAULT_POOL,
            actor=client_of(request).actor,
            idempotency=idempotent_request(request, "start run", body_of(request)),
        )
        return _created(outcome, _serialize_state(outcome.batch))


class RunDetailView(DeltaRunView):
    """`GET /api/v1/runs/{batch_id}`."""

    http_method_names = ("get", "head")
    scope = Scope.JOBS_READ

    @openapi.GET_RUN_DOCS
    def get(self, request: Request, batch_id: str) -> Response:
        """Return a run with its jobs, their attempts, artifacts and failure explanations."""
        batch = self.get_batch(batch_id)
        jobs = Job.objects.filter(batch=batch).select_related("explanation").prefetch_related("artifacts")
        attempts = list(jobs.order_by("root_job_ulid", "attempt"))
        return Response(serialize_run(batch, state_of(batch), attempts, batch.details.get(OPTIONAL, ())))


class CancelRunView(DeltaRunView):
    """`POST /api/v1/runs/{batch_id}/cancel`."""

    @openapi.CANCEL_RUN_DOCS
    def post(self, request: Request, batch_id: str) -> Response:
        """Cancel the waiting jobs of the run, and request its running jobs to stop. Repeats have no effect."""
        body = CancelRun(data=body_of(request))
        body.is_valid(raise_exception=True)
        outcome = batches.cancel_batch(
            batch_ulid=self.get_batch(batch_id).batch_ulid,
            actor=client_of(request).actor,
            deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
            message=body.validated_data["reason"] or "",
        )
        return Response(_serialize_state(outcome.batch))


class RerunRunView(DeltaRunView):
    """`POST /api/v1/runs/{batch_id}/rerun`."""

    @openapi.RERUN_DOCS
    def post(self, request: Request, batch_id: str) -> Response:
        """Run the same jobs again as a new run. The Idempotency-Key prevents a second run after a lost response."""
        RerunRun(data=body_of(request)).is_valid(raise_exception=True)
        original = self.get_batch(batch_id)
        idempotency = _required_idempotency(request, f"rerun {original.batch_ulid}")
        outcome = batches.rerun_batch(
            batch_ulid=original.batch_ulid,
            policy_for=configured_policy,
            default_pool=settings.DEFAULT_POOL,
            cause=Cause(client_of(request).actor, source_address=client_address(request)),
            correlation_id=context_of(request).correlation_id,
            idempotency=idempotency,
        )
        rerun = {
            "original_run": original.batch_ulid,
            "created": "false" if outcome.replayed else "true",
            "idempotencyKey": idempotency.key,
        }
        return _created(outcome, _serialize_state(outcome.batch) | rerun)


def _serialize_state(batch: Batch) -> dict[str, Any]:
    return {"run_id": batch.batch_ulid, "state": RUN_STATES[state_of(batch)]}


def _created(outcome: BatchOutcome, body: dict[str, Any]) -> Response:
    headers = {"Location": f"/api/v1/runs/{outcome.batch.batch_ulid}"}
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Response(body, status=200 if outcome.replayed else 201, headers=headers)


def _required_idempotency(request: Request, operation: str) -> IdempotentRequest:
    """Return the idempotency key. All fields of the body are ignored, so each request with the key is a repeat."""
    idempotency = idempotent_request(request, operation, {})
    if idempotency is None:
        detail = "The header Idempotency-Key is required: a lost response must not cause a second run."
        raise ApiError(400, "invalid", detail, errors={"Idempotency-Key": [detail]})
    return idempotency


def _project(request: Request, body: StartRun) -> Project:
    owner, name = body.repository()
    organizations = client_of(request).organizations
    return project_defaults.find_project(
        owner, name, organizations=organizations, slug=body.validated_data["project_slug"]
    )


def _source(body: StartRun, project: Project) -> RepositorySource:
    """Return the source at the commit of the request, or at the newest known commit of its ref.

    Raises:
        Invalid: The request names no commit, and no push has reported one for the ref.
    """
    ref = body.validated_data["ref"]
    commit = body.commit() or project_defaults.newest_commit(project, body.repo_url(), ref)
    if commit is None:
        raise Invalid({"commit_sha": ["This field is required: no push has reported the commit of this ref."]})
    return body.source_at(commit)


def _jobs(body: StartRun, project: Project, source: RepositorySource) -> list[BatchJob]:
    jobs = body.validated_data["jobs"]
    if jobs is None:
        return [BatchJob(project_defaults.configured_job(project, source))]
    return [BatchJob(steps_spec(job, source, project), job["required"]) for job in jobs]


def _submission(request: Request, body: StartRun, project: Project, source: RepositorySource) -> BatchSubmission:
    reason = body.validated_data["reason"]
    return BatchSubmission(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        source=source,
        trigger_kind="manual",
        trigger_actor=client_of(request).actor.name[:200],
        correlation_id=context_of(request).correlation_id,
        source_address=client_address(request),
        details={"reason": reason} if reason else {},
    )
