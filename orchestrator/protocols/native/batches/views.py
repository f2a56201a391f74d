"""Views of `/v1/batches` and `/v1/checks`."""

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.fields.json import KT, KeyTransform
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.http.client_ip import client_address
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.native.base_view import OrganizationViewSet
from orchestrator.protocols.native.batches import openapi, wire
from orchestrator.protocols.native.batches.filters import BatchFilters, CheckFilters
from orchestrator.protocols.native.batches.serializers import (
    CancelBatchInput,
    PinBatchInput,
    RerunBatchInput,
    StartWorkflowRunInput,
    edit_of,
)
from orchestrator.services.batches import aggregated_state, cancel_batch
from orchestrator.workflows import approval, pins
from orchestrator.workflows.requests import RunStart, rerun, start_run
from orchestrator.workflows.reruns import RerunRequest, RerunScope
from orchestrator.workflows.runs import WorkflowRunOutcome
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.models import Batch, Job, Repository, WorkflowEvent, WorkflowRun
from runtime_jobs.models.tenants import Scope

NO_REPOSITORY = "There is no such organization or repository, or you may not see it."


def _jobs() -> QuerySet[Job]:
    """Return jobs with the members of a workflow job that responses contain, without the rest of their specs."""
    return Job.objects.annotate(
        job_key=KT("spec__job_key"), job_name=KT("spec__job_name"), job_needs=KeyTransform("needs", "spec")
    ).defer("spec")


class BatchViewSet(OrganizationViewSet):
    """Batches of the organizations that the caller may see. Any other batch is answered 404."""

    lookup_field = "batch_ulid"
    lookup_url_kwarg = "batch_id"
    lookup_value_regex = f"rtb_{ULID_PATTERN}"
    http_method_names = ["get", "head", "post"]
    filterset_class = BatchFilters
    organization_slug = "org_slug"

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.JOBS_READ if self.action in {"list", "retrieve"} else Scope.JOBS_WRITE)]

    def all_rows(self) -> QuerySet[Batch]:
        return Batch.objects.select_related("workflow_run__repository__project__organization")

    @openapi.LIST_BATCHES
    def list(self, request: Request) -> Response:
        """List batches, newest first; those of workflow files with their run."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        jobs: dict[int | None, list[Job]] = {batch.pk: [] for batch in page}
        for job in _jobs().filter(batch__in=page).order_by("pk"):
            jobs[job.batch_id].append(job)
        return self.get_paginated_response([_serialize(batch, jobs[batch.pk]) for batch in page])

    @openapi.GET_BATCH
    def retrieve(self, request: Request, batch_id: str) -> Response:
        """Return one batch with its jobs."""
        return Response(_in_detail(self.get_object()))

    @openapi.START_RUN
    def create(self, request: Request) -> Response:
        """Start a run of a workflow file. Its filters of branches and paths do not apply."""
        validated = parse(StartWorkflowRunInput, body_of(request))
        repository = self._repository(request, validated["org_slug"], validated["repository"])
        start = RunStart(
            workflow_file=validated["workflow_file"],
            ref=validated["ref"],
            actor_name=client_of(request).actor.name,
            correlation_id=context_of(request).correlation_id,
            source_address=client_address(request),
            commit=validated["commit"],
            event=WorkflowEvent(validated["event"]),
            inputs=validated["inputs"],
            event_payload=validated["event_payload"],
        )
        key = idempotent_request(request, "start workflow run", body_of(request))
        return _started(start_run(repository, start, actor=client_of(request).actor, idempotency=key))

    def _repository(self, request: Request, org_slug: str, full_name: str) -> Repository:
        owner, _, name = full_name.partition("/")
        rows = Repository.objects.select_related("project__organization")
        wanted = rows.filter(project__organization__slug=org_slug, owner__iexact=owner, name__iexact=name)
        repository = wanted.first() if client_of(request).sees(org_slug) else None
        if repository is None:
            raise NotFound(NO_REPOSITORY)
        return repository

    @openapi.CANCEL_BATCH
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, batch_id: str) -> Response:
        """Cancel all open jobs of a batch (200), or request their workers to stop (202). Repeats change nothing."""
        validated = parse(CancelBatchInput, body_of(request))
        outcome = cancel_batch(
            batch_ulid=self.get_object().batch_ulid,
            actor=client_of(request).actor,
            deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
            message=validated["reason"],
        )
        return Response(_in_detail(outcome.batch), status=202 if outcome.accepted else 200)

    @openapi.RERUN_BATCH
    @action(detail=True, methods=["post"])
    def rerun(self, request: Request, batch_id: str) -> Response:
        """Run a workflow run again, with the file and the event that it had."""
        validated = parse(RerunBatchInput, body_of(request))
        run = self._run(self.get_object())
        asked = RerunRequest(
            actor_name=client_of(request).actor.name,
            correlation_id=context_of(request).correlation_id,
            source_address=client_address(request),
            scope=RerunScope(validated["only"]),
            edit=edit_of(validated["edit"]),
            reason=validated["reason"],
        )
        key = idempotent_request(request, f"rerun {batch_id}", body_of(request))
        return _started(rerun(run, asked, actor=client_of(request).actor, idempotency=key))

    @openapi.APPROVE_BATCH
    @action(detail=True, methods=["post"])
    def approve(self, request: Request, batch_id: str) -> Response:
        """Approve a workflow run with code of a fork. Its jobs may then be claimed."""
        batch = self.get_object()
        approval.approve_workflow_run(run_id=self._run(batch).pk, cause=cause_of(request))
        return Response(_in_detail(self.get_object()))

    @openapi.PIN_BATCH
    @action(detail=True, methods=["post"])
    def pin(self, request: Request, batch_id: str) -> Response:
        """Keep an ended workflow run with its logs and artifacts until it is unpinned. Repeats change nothing."""
        return self._pin(request, pinned=True)

    @openapi.UNPIN_BATCH
    @action(detail=True, methods=["post"])
    def unpin(self, request: Request, batch_id: str) -> Response:
        """Let retention delete a workflow run after its period. Repeats change nothing."""
        return self._pin(request, pinned=False)

    def _pin(self, request: Request, *, pinned: bool) -> Response:
        validated = parse(PinBatchInput, body_of(request))
        pins.pin_workflow_run(
            run_id=self._run(self.get_object()).pk,
            pinned=pinned,
            cause=cause_of(request, validated["reason"]),
        )
        return Response(_in_detail(self.get_object()))

    def _run(self, batch: Batch) -> WorkflowRun:
        run = _run_of(batch)
        if run is None:
            raise ResourceConflict("The batch is not a workflow run.")
        return run


class CheckViewSet(OrganizationViewSet):
    """Jobs of workflow runs as checks of their commits."""

    http_method_names = ["get", "head"]
    filterset_class = CheckFilters
    organization_slug = "org_slug"

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.JOBS_READ)]

    def all_rows(self) -> QuerySet[Job]:
        return _jobs().filter(batch__workflow_run__isnull=False).select_related("batch__workflow_run__repository")

    @openapi.LIST_CHECKS
    def list(self, request: Request) -> Response:
        """List the jobs of workflow runs as checks of their commits, newest first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(
            [wire.serialize_check(job, job.batch.workflow_run) for job in page if job.batch is not None]
        )


def _run_of(batch: Batch) -> WorkflowRun | None:
    try:
        return batch.workflow_run
    except WorkflowRun.DoesNotExist:
        return None


def _serialize(batch: Batch, jobs: list[Job]) -> dict[str, Any]:
    return wire.serialize_batch(batch, aggregated_state(batch, jobs), _run_of(batch), jobs)


def _in_detail(batch: Batch) -> dict[str, Any]:
    jobs = list(_jobs().filter(batch=batch).order_by("pk"))
    return _serialize(batch, jobs) | {"jobs": wire.serialize_jobs(_run_of(batch), jobs)}


def _started(outcome: WorkflowRunOutcome) -> Response:
    run = outcome.run
    jobs = list(_jobs().filter(batch_id=run.batch_id).order_by("pk"))
    body = {
        "batch_id": run.batch.batch_ulid,
        "run_id": run.pk,
        "run_index": run.run_index,
        "jobs": wire.serialize_jobs(run, jobs),
    }
    headers = {"Location": f"/v1/batches/{run.batch.batch_ulid}"}
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Response(body, status=201, headers=headers)
