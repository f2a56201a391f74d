"""Views of `/v1/runtime/leases`: claim, and messages about one lease (document 000)."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.errors import StaleLease, WorkerMismatch
from leases.scheduling.claims import Offer
from orchestrator.http.api.calls import ApiAnswer, ApiCall, respond
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request, worker_session
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.callers import worker_of
from orchestrator.http.auth.permissions import IsWorker
from orchestrator.incidents.worker_readiness import clear_unready, report_unready
from orchestrator.ingest.run_checks import require_run
from orchestrator.protocols.native.leases import openapi, serializers, wire
from orchestrator.protocols.native.serializers import EmptyBody
from orchestrator.services import claiming, job_end
from orchestrator.services import heartbeat as lease_messages
from orchestrator.services.claim_next import ClaimRequest, Finished, complete_and_claim, fail_and_claim
from orchestrator.services.claiming import Claimed
from orchestrator.services.job_end import CompleteMessage, FailMessage
from orchestrator.services.retries import RESEND
from orchestrator.step_logs import job_log_writes
from runtime_jobs.errors import PoolForbidden
from runtime_jobs.identifiers import is_id
from runtime_jobs.models import Organization, UnsentRun
from runtime_jobs.prepared_queries import PreparedQuery
from runtime_jobs.states import FailureReason
from workers.models import Worker
from workers.registry.matching import offer_of

_ORGANIZATIONS = PreparedQuery(Organization, "WHERE t.slug = ANY (%s)")


def claim(call: ApiCall) -> ApiAnswer:
    """Claim the next jobs: 201 with the lease, or with a list if the body has `max_leases`; 204 without a job."""
    worker = worker_of(call)
    validated = parse(serializers.ClaimInput, call.body)
    clear_unready(worker)
    claims = claiming.claim_many(
        worker=worker,
        offer=_offer(worker, validated),
        limit=validated["max_leases"] or 1,
        acknowledge=validated["acknowledge"],
        session=worker_session(call),
        idempotency=idempotent_request(call, "claim", call.body),
    )
    if not claims:
        return ApiAnswer(None, 204)
    headers = {"Idempotency-Replayed": "true"} if claims[0].replayed else {}
    leases = _serialize_claims(claims)
    return ApiAnswer({"leases": leases} if validated["max_leases"] else leases[0], 201, headers)


def acknowledge(call: ApiCall, lease_id: str) -> ApiAnswer:
    """Acknowledge a new lease."""
    parse(EmptyBody, call.body)
    job = lease_messages.acknowledge(lease_ulid=lease_id, worker=worker_of(call), session=worker_session(call))
    return ApiAnswer(wire.serialize_status(job))


def heartbeat(call: ApiCall, lease_id: str) -> ApiAnswer:
    """Extend a lease."""
    validated = parse(serializers.HeartbeatInput, call.body)
    renewed = lease_messages.renew(
        lease_ulid=lease_id,
        worker=worker_of(call),
        phase=validated["phase"],
        progress=validated["progress"],
        session=worker_session(call),
    )
    return ApiAnswer(wire.serialize_heartbeat(renewed.job, renewed.lease, renewed.now))


def complete(call: ApiCall, lease_id: str) -> ApiAnswer:
    """End a job as `uploaded` or `succeeded`; with `claim_next` also claim the next one."""
    worker = worker_of(call)
    validated = parse(serializers.CompleteInput, call.body)
    result, claim_next, session = validated["result"], validated["claim_next"], worker_session(call)
    request = _claim_request(worker, claim_next, session) if claim_next else None
    if result["ingest_run_id"] and not settings.INGEST_URL:
        require_run(run_id=result["ingest_run_id"], lease_ulid=lease_id, worker=worker)
    if request is None:
        job = job_end.complete(lease_ulid=lease_id, worker=worker, **complete_arguments(result))
        return ApiAnswer(wire.serialize_status(job))
    message = CompleteMessage(**complete_arguments(result))
    finished = complete_and_claim(lease_ulid=lease_id, worker=worker, message=message, claim=request)
    return ApiAnswer(_serialize_finished(finished))


def fail(call: ApiCall, lease_id: str) -> ApiAnswer:
    """End a job as `failed`; with `claim_next` also claim the next one."""
    worker = worker_of(call)
    validated = parse(serializers.FailInput, call.body)
    arguments, session = fail_arguments(validated["result"]), worker_session(call)
    if not validated["claim_next"]:
        return ApiAnswer(wire.serialize_status(job_end.fail(lease_ulid=lease_id, worker=worker, **arguments)))
    request = _claim_request(worker, validated["claim_next"], session)
    message = FailMessage(**arguments)
    finished = fail_and_claim(lease_ulid=lease_id, worker=worker, message=message, claim=request)
    return ApiAnswer(_serialize_finished(finished))


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
        return respond(claim, request)

    @openapi.ACKNOWLEDGE_DOCS
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, lease_id: str) -> Response:
        """Acknowledge a new lease. Repeats have no effect."""
        return respond(acknowledge, request, lease_id)

    @openapi.HEARTBEAT_DOCS
    @action(detail=True, methods=["post"])
    def heartbeat(self, request: Request, lease_id: str) -> Response:
        """Extend the lease. The response contains the cancel request, if there is one."""
        return respond(heartbeat, request, lease_id)

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

    @openapi.COMPLETE_DOCS
    @action(detail=True, methods=["post"])
    def complete(self, request: Request, lease_id: str) -> Response:
        """End the job as `uploaded`, or as `succeeded` if its type has no run. A repeat returns the same response.

        With `claim_next` the worker also gets its next job. A refused message claims nothing. A repeat returns the same
        next lease while it is open, else null.
        """
        return respond(complete, request, lease_id)

    @openapi.FAIL_DOCS
    @action(detail=True, methods=["post"])
    def fail(self, request: Request, lease_id: str) -> Response:
        """End the job as `failed`. A repeat returns the same response.

        With `claim_next` the worker also gets its next job. A refused message claims nothing. A repeat returns the same
        next lease while it is open, else null.
        """
        return respond(fail, request, lease_id)

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


def complete_arguments(result: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `services.CompleteMessage` for a validated `result`."""
    return {
        "ingest_run_id": result["ingest_run_id"],
        "exit_code": result["exit_code"],
        "result": wire.build_result(result, "counts"),
    }


def fail_arguments(result: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `services.FailMessage` for a validated `result`."""
    return {
        "reason": FailureReason(result["reason"]),
        "message": result["message"],
        "exit_code": result["exit_code"],
        "result": wire.build_result(result) or None,
        "unsent_run": result["payload"],
    }


def _offer(worker: Worker, validated: dict[str, Any]) -> Offer:
    if validated["worker_id"] != worker.worker_id:
        raise WorkerMismatch("worker_id: This token belongs to another worker.")
    if validated["pool"] not in {None, worker.pool.slug}:
        raise PoolForbidden(f"pool: This worker is registered in the pool {worker.pool.slug}; name that one or none.")
    offered, isolation = offer_of(worker, labels=validated["labels"], capabilities=validated["capabilities"])
    return Offer(worker.worker_id, worker.pool.slug, tuple(validated["job_types"]), offered, isolation)


def _claim_request(worker: Worker, validated: dict[str, Any], session: str) -> ClaimRequest:
    return ClaimRequest(_offer(worker, validated), validated["acknowledge"], session)


def _serialize_finished(finished: Finished) -> dict[str, Any]:
    claims = [finished.next_claim] if finished.next_claim else []
    return wire.serialize_status(finished.job) | {"next_lease": next(iter(_serialize_claims(claims)), None)}


def _serialize_claims(claims: Sequence[Claimed]) -> list[dict[str, Any]]:
    with_network = {claimed.job.org_slug for claimed in claims if claimed.job.allow_network}
    egress = {row.slug: row.egress for row in _ORGANIZATIONS.all(list(with_network))} if with_network else {}
    to_resend = [claimed.job for claimed in claims if RESEND in claimed.job.requirements]
    unsent_runs: dict[Any, Any] = {}
    if to_resend:
        unsent_runs = dict(UnsentRun.objects.filter(job__in=to_resend).values_list("job_id", "payload"))
    return [
        wire.serialize_lease(
            claimed.lease,
            claimed.job,
            egress=egress[claimed.job.org_slug] if claimed.job.allow_network else [],
            unsent_run=unsent_runs.get(claimed.job.job_ulid),
        )
        for claimed in claims
    ]
