"""`/api/v1/runs`: batches as document 001's runs. Clients call them, with the scopes that jobs have."""

from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator import services
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.job_policies import policy_of
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.permissions import requires_scope
from orchestrator.http.auth.principals import client_of
from orchestrator.http.client_ip import client_address
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.delta import errors, runs_operations, runs_wire
from orchestrator.protocols.delta.operations import DeltaSchema
from orchestrator.protocols.delta.runs_requests import CancelRun, RerunRun, StartRun, spec_of
from orchestrator.protocols.delta.runs_words import RUN
from orchestrator.services import BatchJob, BatchOutcome, BatchSubmission, project_defaults
from orchestrator.services.batches import OPTIONAL, state_of
from orchestrator.services.idempotency import IdempotentRequest
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.models import Batch, Job, Project
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import RepositorySource


class RunDoor(StrictQueryMixin, APIView):
    """What all of them have: errors in the documents' envelope, and runs of others that are not there."""

    schema = DeltaSchema()
    http_method_names: tuple[str, ...] = ("post",)
    scope = Scope.JOBS_WRITE

    def get_permissions(self) -> list[Any]:
        return [requires_scope(self.scope)()]

    def get_exception_handler(self) -> Any:
        return errors.answer

    def batch(self, batch_ulid: str) -> Batch:
        """Raises NotFound, also for one that the caller may not see."""
        found = Batch.objects.filter(batch_ulid=batch_ulid).first()
        if found is None or not client_of(self.request).sees(found.org_slug):
            raise NotFound("There is no such run.")
        return found


class RunCreateView(RunDoor):
    @runs_operations.START
    def post(self, request: Request) -> Response:
        """Start a run. Without `jobs` it is the project's configured command, as one job of type `steps`."""
        body = StartRun(data=body_of(request))
        body.is_valid(raise_exception=True)
        project = _project(request, body)
        source = _source(body, project)
        outcome = services.submit_batch(
            _origin(request, body, project, source),
            _jobs(body, project, source),
            policy_of=policy_of,
            default_pool=settings.DEFAULT_POOL,
            actor=client_of(request).actor,
            idempotency=idempotent_request(request, "start run", body_of(request)),
        )
        return _made(outcome, _told(outcome.batch))


class RunDetailView(RunDoor):
    http_method_names = ("get", "head")
    scope = Scope.JOBS_READ

    @runs_operations.SHOW
    def get(self, request: Request, batch_id: str) -> Response:
        """A run with its jobs, their attempts, and what those have left."""
        batch = self.batch(batch_id)
        jobs = Job.objects.filter(batch=batch).select_related("explanation").prefetch_related("artifacts")
        attempts = list(jobs.order_by("root_job_ulid", "attempt"))
        return Response(runs_wire.run(batch, state_of(batch), attempts, batch.details.get(OPTIONAL, ())))


class CancelRunView(RunDoor):
    @runs_operations.CANCEL
    def post(self, request: Request, batch_id: str) -> Response:
        """Cancel what waits, and ask what runs to stop. A repeat changes nothing."""
        body = CancelRun(data=body_of(request))
        body.is_valid(raise_exception=True)
        outcome = services.cancel_batch(
            batch_ulid=self.batch(batch_id).batch_ulid,
            actor=client_of(request).actor,
            deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
            message=body.validated_data["reason"] or "",
        )
        return Response(_told(outcome.batch))


class RerunRunView(RunDoor):
    @runs_operations.RERUN
    def post(self, request: Request, batch_id: str) -> Response:
        """The same jobs again as a new run. The Idempotency-Key is needed: a lost answer must not cost a second run."""
        RerunRun(data=body_of(request)).is_valid(raise_exception=True)
        original = self.batch(batch_id)
        idempotency = _needed(request, f"rerun {original.batch_ulid}")
        outcome = services.rerun_batch(
            batch_ulid=original.batch_ulid,
            policy_of=policy_of,
            default_pool=settings.DEFAULT_POOL,
            actor=client_of(request).actor,
            correlation_id=context_of(request).correlation_id,
            source_address=client_address(request),
            idempotency=idempotency,
        )
        created = "false" if outcome.replayed else "true"
        again = {"original_run": original.batch_ulid, "created": created, "idempotencyKey": idempotency.key}
        return _made(outcome, _told(outcome.batch) | again)


def _told(batch: Batch) -> dict[str, Any]:
    return {"run_id": batch.batch_ulid, "state": RUN[state_of(batch)]}


def _made(outcome: BatchOutcome, body: dict[str, Any]) -> Response:
    headers = {"Location": f"/api/v1/runs/{outcome.batch.batch_ulid}"}
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Response(body, status=200 if outcome.replayed else 201, headers=headers)


def _needed(request: Request, operation: str) -> IdempotentRequest:
    """The body holds nothing that counts, so every repeat under the key is the same."""
    idempotency = idempotent_request(request, operation, {})
    if idempotency is None:
        detail = "An Idempotency-Key is needed."
        raise ApiError(400, "invalid", detail, errors={"Idempotency-Key": [detail]})
    return idempotency


def _project(request: Request, body: StartRun) -> Project:
    owner, name = body.repository()
    mine = client_of(request).organizations
    return project_defaults.find_project(owner, name, organizations=mine, slug=body.validated_data["project_slug"])


def _source(body: StartRun, project: Project) -> RepositorySource:
    """Raises Invalid where nobody has said which commit the ref is at."""
    ref = body.validated_data["ref"]
    commit = body.commit() or project_defaults.newest_commit(project, body.repo_url(), ref)
    if commit is None:
        raise Invalid({"commit_sha": ["It is needed: no push has told which commit this ref is at."]})
    return body.source_at(commit)


def _jobs(body: StartRun, project: Project, source: RepositorySource) -> list[BatchJob]:
    sent = body.validated_data["jobs"]
    if sent is None:
        return [BatchJob(project_defaults.configured_job(project, source))]
    return [BatchJob(spec_of(job, source, project), job["required"]) for job in sent]


def _origin(request: Request, body: StartRun, project: Project, source: RepositorySource) -> BatchSubmission:
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
