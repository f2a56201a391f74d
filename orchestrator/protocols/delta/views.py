"""`/api/v1/internal/…`: what Delta CI's runners ask for and tell (document 001)."""

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator import services
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.auth.authentication import BearerToken
from orchestrator.http.auth.client_certificates import ProxyClientCertAuth
from orchestrator.http.auth.permissions import IsWorker
from orchestrator.http.auth.principals import worker_of
from orchestrator.protocols.delta import errors, operations, requests, wire
from orchestrator.protocols.delta.leases import claim_for_runner, lease_granted
from orchestrator.protocols.delta.operations import DeltaSchema
from orchestrator.protocols.delta.permissions import CanUseLease, worker_for_lease
from orchestrator.protocols.delta.states import FAILURES, SUCCEEDED
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from workers.models import Worker


class DeltaView(APIView):
    """`lease_id` is that of the message, once it is read; `stale_too` what its sender hears besides if it is stale."""

    authentication_classes = (BearerToken, ProxyClientCertAuth)
    permission_classes: Any = (CanUseLease,)
    http_method_names = ("post",)
    schema = DeltaSchema()
    lease_id = ""
    stale_too: ClassVar[dict[str, Any]] = {}

    def get_exception_handler(self) -> Any:
        return errors.answer

    def hear(self, message: requests.LeaseMessage) -> Worker:
        """Check the message, and return the worker that it speaks for."""
        message.is_valid(raise_exception=True)
        sent = message.validated_data
        self.lease_id = sent["lease_id"]
        return worker_for_lease(self.request, lease_id=self.lease_id, job_id=sent["job_id"])


class LeaseView(DeltaView):
    permission_classes = (IsWorker,)

    @operations.LEASE
    def post(self, request: Request) -> Response:
        """Grant the next job of type `steps`. With `wait_seconds`, answer as soon as there is one."""
        sent = requests.LeaseWanted(data=body_of(request))
        sent.is_valid(raise_exception=True)
        idempotency = idempotent_request(request, "delta lease", body_of(request))
        claimed = claim_for_runner(
            worker_of(request), capabilities=sent.validated_data["capabilities"], idempotency=idempotency
        )
        if claimed is None:
            return Response(status=204)
        headers = {"Idempotency-Replayed": "true"} if claimed.replayed else {}
        return Response(lease_granted(claimed), headers=headers)


class AckLeaseView(DeltaView):
    @operations.ACK_LEASE
    def post(self, request: Request) -> Response:
        """Take up a lease that was granted; again changes nothing."""
        message = requests.AckLease(data=body_of(request))
        worker = self.hear(message)
        job = services.acknowledge(lease_ulid=self.lease_id, worker=worker, runner=message.validated_data["runner_id"])
        return Response(wire.accepted(self.lease_id, job))


class HeartbeatView(DeltaView):
    stale_too = wire.NO_MORE

    @operations.HEARTBEAT
    def post(self, request: Request) -> Response:
        """Renew the lease, and hear whether the job shall be canceled. The first one says that the job executes."""
        message = requests.RunnerHeartbeat(data=body_of(request))
        worker = self.hear(message)
        renewed = services.renew(
            lease_ulid=self.lease_id,
            worker=worker,
            reached=JobState.EXECUTING,
            progress=message.told(),
            runner=message.validated_data["runner_id"],
        )
        return Response(wire.heartbeat_ack(renewed.lease, renewed.job, renewed.at))


class CompleteView(DeltaView):
    @operations.COMPLETE
    def post(self, request: Request) -> Response:
        """End the job. The same message again is answered the same."""
        message = requests.RunnerComplete(data=body_of(request))
        worker = self.hear(message)
        return Response(wire.complete_ack(self.lease_id, _ended(self.lease_id, worker, message)))


def _ended(lease_id: str, worker: Worker, message: requests.RunnerComplete) -> Job:
    sent = message.validated_data
    told: dict[str, Any] = {
        "lease_ulid": lease_id,
        "worker": worker,
        "exit_code": message.exit(),
        "result": message.result(),
        "artifacts": message.references(),
        "runner": sent["runner_id"],
    }
    if sent["status"] == SUCCEEDED:
        return services.complete(**told)
    return services.fail(**told, reason=FAILURES[sent["status"]], message=sent["summary"] or "")


class CancelAckView(DeltaView):
    @operations.CANCEL_ACK
    def post(self, request: Request) -> Response:
        """End the job as canceled, as was asked. The same message again is answered the same."""
        message = requests.CancelAck(data=body_of(request))
        worker = self.hear(message)
        job = services.acknowledge_cancel(
            lease_ulid=self.lease_id,
            worker=worker,
            message=message.validated_data["summary"] or "",
            artifacts=message.references(),
            runner=message.validated_data["runner_id"],
        )
        return Response(wire.cancel_finalized(self.lease_id, job))
