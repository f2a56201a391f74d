"""Views of `/api/v1/internal/`: messages of Delta CI runners (document 001)."""

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.auth.authentication import BearerToken
from orchestrator.http.auth.callers import worker_of
from orchestrator.http.auth.client_certificates import ProxyClientCertAuth
from orchestrator.http.auth.permissions import IsWorker
from orchestrator.protocols.delta import errors
from orchestrator.protocols.delta.openapi import DeltaSchema
from orchestrator.protocols.delta.runners import openapi, serializers, wire
from orchestrator.protocols.delta.runners.leases import claim_for_runner, lease_granted
from orchestrator.protocols.delta.runners.permissions import CanUseLease, worker_for_lease
from orchestrator.protocols.delta.states import FAILURES, SUCCEEDED
from orchestrator.services import heartbeat, job_end
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from workers.models import Worker


class DeltaRunnerView(APIView):
    """Base of the views of messages about a lease.

    Attributes:
        lease_id: Lease id of the message, once the message is read.
        stale_extra: Further members of the error for a stale lease.
    """

    authentication_classes = (BearerToken, ProxyClientCertAuth)
    permission_classes: Any = (CanUseLease,)
    http_method_names = ("post",)
    schema = DeltaSchema()
    lease_id = ""
    stale_extra: ClassVar[dict[str, Any]] = {}

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def authenticate_message(self, message: serializers.LeaseMessage) -> Worker:
        """Validate the message, and return the worker of its lease."""
        message.is_valid(raise_exception=True)
        self.lease_id = message.validated_data["lease_id"]
        return worker_for_lease(self.request, lease_id=self.lease_id, job_id=message.validated_data["job_id"])


class LeaseView(DeltaRunnerView):
    """`POST /api/v1/internal/lease`."""

    permission_classes = (IsWorker,)

    @openapi.LEASE_DOCS
    def post(self, request: Request) -> Response:
        """Grant the next job of type `steps`. With `wait_seconds` the request waits until a job is available."""
        message = serializers.LeaseRequest(data=body_of(request))
        message.is_valid(raise_exception=True)
        idempotency = idempotent_request(request, "delta lease", body_of(request))
        claimed = claim_for_runner(
            worker_of(request), capabilities=message.validated_data["capabilities"], idempotency=idempotency
        )
        if claimed is None:
            return Response(status=204)
        headers = {"Idempotency-Replayed": "true"} if claimed.replayed else {}
        return Response(lease_granted(claimed), headers=headers)


class AckLeaseView(DeltaRunnerView):
    """`POST /api/v1/internal/ack-lease`."""

    @openapi.ACK_LEASE_DOCS
    def post(self, request: Request) -> Response:
        """Acknowledge a new lease. Repeats have no effect."""
        message = serializers.AckLease(data=body_of(request))
        worker = self.authenticate_message(message)
        job = heartbeat.acknowledge(lease_ulid=self.lease_id, worker=worker, runner=message.validated_data["runner_id"])
        return Response(wire.lease_accepted(self.lease_id, job))


class HeartbeatView(DeltaRunnerView):
    """`POST /api/v1/internal/heartbeat`."""

    stale_extra = wire.STALE_HEARTBEAT

    @openapi.HEARTBEAT_DOCS
    def post(self, request: Request) -> Response:
        """Extend the lease. The first heartbeat starts the phase `executing`; the response has the cancel request."""
        message = serializers.RunnerHeartbeat(data=body_of(request))
        worker = self.authenticate_message(message)
        renewed = heartbeat.renew(
            lease_ulid=self.lease_id,
            worker=worker,
            reached=JobState.EXECUTING,
            progress=message.job_progress(),
            runner=message.validated_data["runner_id"],
        )
        return Response(wire.heartbeat_ack(renewed.lease, renewed.job, renewed.now))


class CompleteView(DeltaRunnerView):
    """`POST /api/v1/internal/complete`."""

    @openapi.COMPLETE_DOCS
    def post(self, request: Request) -> Response:
        """End the job. A repeat returns the same response."""
        message = serializers.RunnerComplete(data=body_of(request))
        worker = self.authenticate_message(message)
        return Response(wire.complete_ack(self.lease_id, _end_job(self.lease_id, worker, message)))


def _end_job(lease_id: str, worker: Worker, message: serializers.RunnerComplete) -> Job:
    validated = message.validated_data
    arguments: dict[str, Any] = {
        "lease_ulid": lease_id,
        "worker": worker,
        "exit_code": message.job_exit_code(),
        "result": message.job_result(),
        "artifacts": message.references(),
        "runner": validated["runner_id"],
    }
    if validated["status"] == SUCCEEDED:
        return job_end.complete(**arguments)
    return job_end.fail(**arguments, reason=FAILURES[validated["status"]], message=validated["summary"] or "")


class CancelAckView(DeltaRunnerView):
    """`POST /api/v1/internal/cancel-ack`."""

    @openapi.CANCEL_ACK_DOCS
    def post(self, request: Request) -> Response:
        """End the job as canceled, after a cancel was requested. A repeat returns the same response."""
        message = serializers.CancelAck(data=body_of(request))
        worker = self.authenticate_message(message)
        job = job_end.acknowledge_cancel(
            lease_ulid=self.lease_id,
            worker=worker,
            message=message.validated_data["summary"] or "",
            artifacts=message.references(),
            runner=message.validated_data["runner_id"],
        )
        return Response(wire.cancel_finalized(self.lease_id, job))
