"""`/api/v1/internal/…`: what Delta CI's runners ask for and tell (document 001)."""

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator import lifecycle
from orchestrator.access.authentication import BearerToken
from orchestrator.access.certificates import ProxyCertificate
from orchestrator.access.headers import repeatable
from orchestrator.access.parsing import body_of
from orchestrator.access.permissions import IsWorker
from orchestrator.access.principals import worker_of
from orchestrator.protocols.delta import errors, operations, requests, wire
from orchestrator.protocols.delta.callers import MaySpeak, holder_of
from orchestrator.protocols.delta.granting import grant, lease_granted
from orchestrator.protocols.delta.operations import DeltaSchema
from orchestrator.protocols.delta.words import FAILURES, SUCCEEDED
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from workers.models import Worker


class Door(APIView):
    """`lease_id` is that of the message, once it is read; `stale_too` what its sender hears besides if it is stale."""

    authentication_classes = (BearerToken, ProxyCertificate)
    permission_classes: Any = (MaySpeak,)
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
        return holder_of(self.request, lease_id=self.lease_id, job_id=sent["job_id"])


class Lease(Door):
    permission_classes = (IsWorker,)

    @operations.LEASE
    def post(self, request: Request) -> Response:
        """Grant the next job of type `steps`. With `wait_seconds`, answer as soon as there is one."""
        sent = requests.LeaseWanted(data=body_of(request))
        sent.is_valid(raise_exception=True)
        once = repeatable(request, "delta lease", body_of(request))
        claimed = grant(worker_of(request), capabilities=sent.validated_data["capabilities"], once=once)
        if claimed is None:
            return Response(status=204)
        headers = {"Idempotency-Replayed": "true"} if claimed.replayed else {}
        return Response(lease_granted(claimed), headers=headers)


class AckLease(Door):
    @operations.ACK_LEASE
    def post(self, request: Request) -> Response:
        """Take up a lease that was granted; again changes nothing."""
        message = requests.AckLease(data=body_of(request))
        worker = self.hear(message)
        job = lifecycle.acknowledge(lease_ulid=self.lease_id, worker=worker, runner=message.validated_data["runner_id"])
        return Response(wire.accepted(self.lease_id, job))


class Heartbeat(Door):
    stale_too = wire.NO_MORE

    @operations.HEARTBEAT
    def post(self, request: Request) -> Response:
        """Renew the lease, and hear whether the job shall be canceled. The first one says that the job executes."""
        message = requests.RunnerHeartbeat(data=body_of(request))
        worker = self.hear(message)
        renewed = lifecycle.renew(
            lease_ulid=self.lease_id,
            worker=worker,
            reached=JobState.EXECUTING,
            progress=message.told(),
            runner=message.validated_data["runner_id"],
        )
        return Response(wire.heartbeat_ack(renewed.lease, renewed.job, renewed.at))


class Complete(Door):
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
        return lifecycle.complete(**told)
    return lifecycle.fail(**told, reason=FAILURES[sent["status"]], message=sent["summary"] or "")


class CancelAck(Door):
    @operations.CANCEL_ACK
    def post(self, request: Request) -> Response:
        """End the job as canceled, as was asked. The same message again is answered the same."""
        message = requests.CancelAck(data=body_of(request))
        worker = self.hear(message)
        job = lifecycle.acknowledge_cancel(
            lease_ulid=self.lease_id,
            worker=worker,
            message=message.validated_data["summary"] or "",
            artifacts=message.references(),
            runner=message.validated_data["runner_id"],
        )
        return Response(wire.cancel_finalized(self.lease_id, job))
