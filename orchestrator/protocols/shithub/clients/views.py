"""The views of users: they need an API token with the scope `jobs:write`."""

from typing import Any, ClassVar

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.client_ip import client_address
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.job_tokens.claims import MAX_ID
from orchestrator.protocols.shithub.authentication import job_key
from orchestrator.protocols.shithub.base_view import ShithubView
from orchestrator.protocols.shithub.clients import openapi
from orchestrator.protocols.shithub.clients.authentication import authenticate_user, require_scope, scope_headers
from orchestrator.protocols.shithub.clients.operations import cancel_job
from orchestrator.protocols.shithub.errors import not_found
from orchestrator.workflows.job_rows import require_run
from orchestrator.workflows.requests import rerun
from orchestrator.workflows.reruns import RerunRequest
from runtime_jobs.errors import WorkflowRejected
from runtime_jobs.models import Job, WorkflowRun
from runtime_jobs.specs import ACTIONS


class UserView(ShithubView):
    """Base of the views. What another tenant has does not exist for the caller."""

    credential: ClassVar[str] = "user"
    client: ClientPrincipal | None = None

    def authenticate(self, request: Request) -> ClientPrincipal:
        """Return the caller, which has the scope.

        Raises:
            ApiError: 401, 403 or 429.
        """
        self.client = authenticate_user(request)
        require_scope(self.client)
        return self.client

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the scopes of the token to every response to it."""
        final = super().finalize_response(request, response, *args, **kwargs)
        for name, value in (scope_headers(self.client) if self.client else {}).items():
            final.headers.setdefault(name, value)
        return final


class CancelJobView(UserView):
    """`POST /api/v1/jobs/{job_id}/cancel`."""

    @openapi.CANCEL_DOCS
    def post(self, request: Request, job_id: str) -> Response:
        """Cancel a job: a waiting one at once, a running one by a request to its runner with a deadline."""
        client = self.authenticate(request)
        job = Job.objects.filter(pk=job_key(job_id), job_type=ACTIONS).first()
        if job is None or not client.sees(job.org_slug):
            raise not_found("The job does not exist, or you may not change it.")
        run = require_run(job)
        outcome = cancel_job(
            job_ulid=job.job_ulid, actor=client.actor, deadline_seconds=settings.CANCEL_DEADLINE_SECONDS
        )
        body = {
            "job_id": job.pk,
            "run_id": run.pk,
            "repo_id": run.repository_id,
            "changed_jobs": outcome.changed_jobs,
            "run_completed": outcome.run_conclusion is not None,
            "run_conclusion": str(outcome.run_conclusion or ""),
        }
        return Response(body, status=202)


class RerunView(UserView):
    """`POST /api/v1/runs/{run_id}/rerun`."""

    @openapi.RERUN_DOCS
    def post(self, request: Request, run_id: int) -> Response:
        """Run the workflow file of a run again, as it is at the commit of that run."""
        client = self.authenticate(request)
        rows = WorkflowRun.objects.select_related("batch", "repository__project__organization")
        run = rows.filter(pk=run_id).first() if 0 < run_id <= MAX_ID else None
        if run is None or not client.sees(run.batch.org_slug):
            raise not_found("The run does not exist, or you may not change it.")
        asked = RerunRequest(
            actor_name=client.actor.name,
            correlation_id=context_of(request).correlation_id,
            source_address=client_address(request),
        )
        try:
            new = rerun(run, asked, actor=client.actor).run
        except WorkflowRejected as error:
            raise ApiError(422, "workflow_rejected", error.message, errors=error.errors) from None
        body = {
            "run_id": new.pk,
            "run_index": new.run_index,
            "parent_run_id": run.pk,
            "repo_id": new.repository_id,
            "workflow_file": new.workflow_file,
            "head_sha": new.head_sha,
        }
        return Response(body, status=201)
