"""Views of the steps of a leased workflow job."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from leases.errors import StaleLease
from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of
from orchestrator.job_tokens.claims import sign
from orchestrator.protocols.native.leases.views import WorkerViewSet
from orchestrator.protocols.native.serializers import EmptyBody
from orchestrator.protocols.native.workflow_jobs import openapi, serializers
from orchestrator.workflows import executions
from runtime_jobs.identifiers import is_id
from runtime_jobs.states import Conclusion


class LeaseStepViewSet(WorkerViewSet):
    """Steps of the workflow job of a lease."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse a malformed lease id like an unknown one, before any look-up."""
        super().initial(request, *args, **kwargs)
        if not is_id(kwargs["lease_id"], "rtl"):
            raise StaleLease("unknown_lease")

    @openapi.START_STEPS
    def start(self, request: Request, lease_id: str) -> Response:
        """Fix the secrets and variables of the job, and return what its worker needs before the first step."""
        parse(EmptyBody, body_of(request))
        started = executions.begin_job(lease_ulid=lease_id, worker=self.worker)
        return Response(
            {
                "repository": started.run.repository.full_name,
                "head_sha": started.run.head_sha,
                "checkout_token": sign(started.checkout_token),
                "step_count": started.step_count,
            }
        )

    @openapi.BEGIN_STEP
    def begin(self, request: Request, lease_id: str, index: int) -> Response:
        """Evaluate a step, and mark it as running or skipped. Sending the same again has no effect."""
        state = executions.PriorSteps(**parse(serializers.BeginStepInput, body_of(request)))
        order = executions.begin_step(lease_ulid=lease_id, worker=self.worker, index=index, state=state)
        return Response(vars(order))

    @openapi.END_STEP
    def end(self, request: Request, lease_id: str, index: int) -> Response:
        """End a step. Sending the same again has no effect."""
        conclusion = Conclusion(parse(serializers.EndStepInput, body_of(request))["conclusion"])
        executions.end_step(lease_ulid=lease_id, worker=self.worker, index=index, conclusion=conclusion)
        return Response(status=204)
