"""Views of `/v1/runtime/leases`: claim, and messages about one lease (document 000)."""

from typing import Any

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.errors import StaleLease
from orchestrator.http.api.calls import respond
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import worker_session
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.callers import worker_of
from orchestrator.http.auth.permissions import IsWorker
from orchestrator.incidents.worker_readiness import report_unready
from orchestrator.protocols.native.leases import calls, openapi, outputs, serializers, wire
from orchestrator.services import heartbeat as lease_messages
from orchestrator.services import job_end
from orchestrator.step_logs import job_log_writes
from runtime_jobs.identifiers import is_id
from workers.models import Worker


class WorkerViewSet(StrictQueryMixin, GenericViewSet):
    """Base of the views that only workers may call."""

    permission_classes = [IsWorker]
    http_method_names = ["post"]
    filter_backends: list[Any] = []
    pagination_class = None

    @property
    def worker(self) -> Worker:
        """Return the worker that sent the request."""
        return worker_of(self.request)


class WorkerReadinessViewSet(WorkerViewSet):
    """The readiness of the calling worker to claim jobs."""

    @openapi.UNREADY_DOCS
    @action(detail=False, methods=["post"])
    def unready(self, request: Request) -> Response:
        """Report why the worker does not claim jobs, for operators. Its next claim ends this."""
        validated = parse(serializers.UnreadyInput, body_of(request))
        report_unready(worker=self.worker, session=worker_session(request), **validated)
        return Response(status=204)


class LeaseViewSet(WorkerViewSet):
    """Leases of the calling worker.

    An unknown lease, the lease of another worker and a lease that has ended are all answered 409 `stale_lease`.
    """

    lookup_url_kwarg = "lease_id"
    lookup_value_regex = "[^/]+"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse a malformed lease id like an unknown one, before any look-up."""
        super().initial(request, *args, **kwargs)
        if "lease_id" in kwargs and not is_id(kwargs["lease_id"], "rtl"):
            raise StaleLease("unknown_lease")

    @openapi.CLAIM_DOCS
    def create(self, request: Request) -> Response:
        """Claim the next job. With `wait_seconds` the request waits until a job is available."""
        return respond(calls.claim, request)

    @openapi.ACKNOWLEDGE_DOCS
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, lease_id: str) -> Response:
        """Acknowledge a new lease. Repeats have no effect."""
        return respond(calls.acknowledge, request, lease_id)

    @openapi.HEARTBEAT_DOCS
    @action(detail=True, methods=["post"])
    def heartbeat(self, request: Request, lease_id: str) -> Response:
        """Extend the lease. The response contains the cancel request, if there is one."""
        return respond(calls.heartbeat, request, lease_id)

    @openapi.REPORT_DOCS
    @action(detail=True, methods=["post"])
    def report(self, request: Request, lease_id: str) -> Response:
        """Advance the job to a later phase. Reporting the current phase again has no effect."""
        validated = parse(serializers.ReportInput, body_of(request))
        job = lease_messages.report(
            lease_ulid=lease_id, worker=self.worker, phase=validated["phase"], session=worker_session(request)
        )
        return Response(wire.serialize_status(job))

    @openapi.APPEND_LOG_DOCS
    @action(detail=True, methods=["post"])
    def logs(self, request: Request, lease_id: str) -> Response:
        """Append the next chunk to the log of the job. Sending the same chunk again has no effect."""
        validated = parse(serializers.LogChunkInput, body_of(request))
        appended = job_log_writes.append_log(
            lease_ulid=lease_id,
            worker=self.worker,
            step=validated["step"],
            seq=validated["seq"],
            chunk=validated["chunk"],
        )
        return Response({"next_seq": appended.next_seq, "truncated": appended.truncated})

    @openapi.STORE_OUTPUT_DOCS
    @action(detail=True, methods=["post"])
    def output(self, request: Request, lease_id: str) -> Response:
        """Store the output of the job, before the final message that names it."""
        body = parse(serializers.JobOutputInput, body_of(request))["output"]
        job = outputs.leased_job(lease_id, self.worker)
        return Response({"output": outputs.store(job, lease_id, body)})

    @openapi.COMPLETE_DOCS
    @action(detail=True, methods=["post"])
    def complete(self, request: Request, lease_id: str) -> Response:
        """End the job as `uploaded`, or as `succeeded` if its type has no run. A repeat returns the same response.

        With `claim_next` the worker also gets its next job. A refused message claims nothing. A repeat returns the same
        next lease while it is open, else null.
        """
        return respond(calls.complete, request, lease_id)

    @openapi.FAIL_DOCS
    @action(detail=True, methods=["post"])
    def fail(self, request: Request, lease_id: str) -> Response:
        """End the job as `failed`. A repeat returns the same response.

        With `claim_next` the worker also gets its next job. A refused message claims nothing. A repeat returns the same
        next lease while it is open, else null.
        """
        return respond(calls.fail, request, lease_id)

    @openapi.ACKNOWLEDGE_CANCEL_DOCS
    @action(detail=True, methods=["post"], url_path="acknowledge-cancel")
    def acknowledge_cancel(self, request: Request, lease_id: str) -> Response:
        """End the job as `canceled`, after a cancel was requested."""
        validated = parse(serializers.AcknowledgeCancelInput, body_of(request))
        job = job_end.acknowledge_cancel(lease_ulid=lease_id, worker=self.worker, message=validated["message"])
        return Response(wire.serialize_status(job))

    @openapi.RELEASE_DOCS
    @action(detail=True, methods=["post"])
    def release(self, request: Request, lease_id: str) -> Response:
        """Return the job to the queue without executing it."""
        validated = parse(serializers.ReleaseInput, body_of(request))
        job = lease_messages.release(
            lease_ulid=lease_id, worker=self.worker, message=validated["message"], unable=validated["unable"]
        )
        return Response(wire.serialize_status(job))
