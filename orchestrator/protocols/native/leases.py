"""`/v1/runtime/leases`: claim, and what the holder of a lease says about its job (document 000)."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.errors import StaleLease, WorkerMismatch
from leases.scheduling.claims import Offer
from orchestrator import services
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request, worker_session
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.permissions import IsWorker
from orchestrator.http.auth.principals import worker_of
from orchestrator.ingest.run_checks import require_run
from orchestrator.protocols.native import lease_operations as operations
from orchestrator.protocols.native import requests, wire
from orchestrator.services import RESEND, Claimed
from runtime_jobs.errors import PoolForbidden
from runtime_jobs.identifiers import is_id
from runtime_jobs.models import Organization, UnsentRun
from runtime_jobs.prepared_queries import PreparedQuery
from runtime_jobs.states import FailureReason
from workers.models import Worker
from workers.registry.matching import offer_of


class ForWorkers(StrictQueryMixin, GenericViewSet):
    """What only workers may call."""

    permission_classes = [IsWorker]
    http_method_names = ["post"]
    filter_backends: list[Any] = []
    pagination_class = None

    @property
    def worker(self) -> Worker:
        return worker_of(self.request)


class LeaseViewSet(ForWorkers):
    """An unknown lease, another worker's and one that has ended are all answered 409 `stale_lease`."""

    lookup_url_kwarg = "lease_id"
    lookup_value_regex = "[^/]+"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """What cannot be a lease's id is answered as one that does not exist, before anything looks it up."""
        super().initial(request, *args, **kwargs)
        if "lease_id" in kwargs and not is_id(kwargs["lease_id"], "rtl"):
            raise StaleLease("unknown_lease")

    @operations.CLAIM
    def create(self, request: Request) -> Response:
        """Claim the next job. With `wait_seconds`, answer as soon as there is one."""
        sent = parse(requests.Claim, body_of(request))
        claims = services.claim_many(
            worker=self.worker,
            offer=_offer(self.worker, sent),
            limit=sent["max_leases"] or 1,
            acknowledge=sent["acknowledge"],
            session=worker_session(request),
            idempotency=idempotent_request(request, "claim", body_of(request)),
        )
        if not claims:
            return Response(status=204)
        headers = {"Idempotency-Replayed": "true"} if claims[0].replayed else {}
        leases = _handed_out(claims)
        return Response({"leases": leases} if sent["max_leases"] else leases[0], status=201, headers=headers)

    @operations.ACKNOWLEDGE
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, lease_id: str) -> Response:
        """Take up a lease that was granted; again changes nothing."""
        parse(requests.Nothing, body_of(request))
        job = services.acknowledge(lease_ulid=lease_id, worker=self.worker, session=worker_session(request))
        return Response(wire.ended(job))

    @operations.HEARTBEAT
    @action(detail=True, methods=["post"])
    def heartbeat(self, request: Request, lease_id: str) -> Response:
        """Renew the lease, and hear whether the job shall be canceled."""
        sent = parse(requests.Heartbeat, body_of(request))
        renewed = services.renew(
            lease_ulid=lease_id,
            worker=self.worker,
            phase=sent["phase"],
            progress=sent["progress"],
            session=worker_session(request),
        )
        return Response(wire.renewed(renewed.job, renewed.lease, renewed.at))

    @operations.REPORT
    @action(detail=True, methods=["post"])
    def report(self, request: Request, lease_id: str) -> Response:
        """Move the job forward to a phase; the same phase again changes nothing."""
        sent = parse(requests.Report, body_of(request))
        job = services.report(
            lease_ulid=lease_id, worker=self.worker, phase=sent["phase"], session=worker_session(request)
        )
        return Response(wire.ended(job))

    @operations.APPEND_LOG
    @action(detail=True, methods=["post"])
    def logs(self, request: Request, lease_id: str) -> Response:
        """Append the next chunk of the job's output; the same chunk again changes nothing."""
        sent = parse(requests.LogChunk, body_of(request))
        taken = services.append_log(
            lease_ulid=lease_id, worker=self.worker, step=sent["step"], seq=sent["seq"], chunk=sent["chunk"]
        )
        return Response({"next_seq": taken.next_seq, "truncated": taken.truncated})

    @operations.COMPLETE
    @action(detail=True, methods=["post"])
    def complete(self, request: Request, lease_id: str) -> Response:
        """End the job as uploaded, or as succeeded where its type has no run. The same message again is answered the
        same."""
        result = parse(requests.Complete, body_of(request))["result"]
        if result["ingest_run_id"] and not settings.INGEST_URL:
            require_run(run_id=result["ingest_run_id"], lease_ulid=lease_id, worker=self.worker)
        job = services.complete(lease_ulid=lease_id, worker=self.worker, **success_of(result))
        return Response(wire.ended(job))

    @operations.FAIL
    @action(detail=True, methods=["post"])
    def fail(self, request: Request, lease_id: str) -> Response:
        """End the job as failed. The same message again is answered the same."""
        result = parse(requests.Fail, body_of(request))["result"]
        job = services.fail(lease_ulid=lease_id, worker=self.worker, **failure_of(result))
        return Response(wire.ended(job))

    @operations.ACKNOWLEDGE_CANCEL
    @action(detail=True, methods=["post"], url_path="acknowledge-cancel")
    def acknowledge_cancel(self, request: Request, lease_id: str) -> Response:
        """End the job as canceled, as was asked."""
        sent = parse(requests.AcknowledgeCancel, body_of(request))
        job = services.acknowledge_cancel(lease_ulid=lease_id, worker=self.worker, message=sent["message"])
        return Response(wire.ended(job))

    @operations.RELEASE
    @action(detail=True, methods=["post"])
    def release(self, request: Request, lease_id: str) -> Response:
        """Give the job back unexecuted."""
        sent = parse(requests.Release, body_of(request))
        job = services.release(lease_ulid=lease_id, worker=self.worker, message=sent["message"], unable=sent["unable"])
        return Response(wire.ended(job))


def success_of(result: dict[str, Any]) -> dict[str, Any]:
    """What a complete tells the core; the fields of `lifecycle.Success`."""
    return {
        "ingest_run_id": result["ingest_run_id"],
        "exit_code": result["exit_code"],
        "result": wire.told(result, "counts"),
    }


def failure_of(result: dict[str, Any]) -> dict[str, Any]:
    """What a fail tells the core; the fields of `lifecycle.Failure`."""
    return {
        "reason": FailureReason(result["reason"]),
        "message": result["message"],
        "exit_code": result["exit_code"],
        "result": wire.told(result) or None,
        "unsent_run": result["payload"],
    }


_ORGANIZATIONS = PreparedQuery(Organization, "WHERE t.slug = ANY (%s)")


def _offer(worker: Worker, sent: dict[str, Any]) -> Offer:
    if sent["worker_id"] != worker.worker_id:
        raise WorkerMismatch("This token is another worker's.")
    if sent["pool"] not in {None, worker.pool.slug}:
        raise PoolForbidden("This worker is not registered in that pool.")
    offered, isolation = offer_of(worker, labels=sent["labels"], capabilities=sent["capabilities"])
    return Offer(worker.worker_id, worker.pool.slug, tuple(sent["job_types"]), offered, isolation)


def _handed_out(claims: Sequence[Claimed]) -> list[dict[str, Any]]:
    connected = {one.job.org_slug for one in claims if one.job.allow_network}
    egress = {row.slug: row.egress for row in _ORGANIZATIONS.all(list(connected))} if connected else {}
    resent = [one.job for one in claims if RESEND in one.job.requirements]
    unsent: dict[Any, Any] = {}
    if resent:
        unsent = dict(UnsentRun.objects.filter(job__in=resent).values_list("job_id", "payload"))
    return [
        wire.claimed(
            one.lease,
            one.job,
            egress=egress[one.job.org_slug] if one.job.allow_network else [],
            unsent_run=unsent.get(one.job.job_ulid),
        )
        for one in claims
    ]
