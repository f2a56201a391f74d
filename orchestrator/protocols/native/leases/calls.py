"""The calls about leases that workers send most: claim, acknowledge, heartbeat, complete, fail (document 000).

All are combined: concurrent calls of any workers run as one operation.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.conf import settings

from leases.errors import WorkerMismatch
from leases.scheduling.claims import Offer
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.http.api.calls import ApiAnswer, ApiCall, CombinedCall
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request, worker_session
from orchestrator.http.auth.callers import worker_of
from orchestrator.incidents.worker_readiness import clear_unready
from orchestrator.ingest.run_checks import refused_runs
from orchestrator.protocols.native.leases import serializers, wire
from orchestrator.protocols.native.leases.images import image_members
from orchestrator.protocols.native.leases.outputs import with_read_results
from orchestrator.protocols.native.serializers import EmptyBody
from orchestrator.services import batch_calls, claiming
from orchestrator.services.batch_calls import Ended, Messages, Results, WorkerMessage
from orchestrator.services.claim_next import ClaimRequest, Finished, claim_after, complete_and_claim, fail_and_claim
from orchestrator.services.claiming import Claimed, ClaimOrder
from orchestrator.services.heartbeat import HeartbeatResult, HeartbeatUpdate
from orchestrator.services.job_end import CompleteMessage, FailMessage
from orchestrator.services.retries import RESEND
from runtime_jobs.errors import LifecycleError, PoolForbidden
from runtime_jobs.models import Job, Organization, UnsentRun
from runtime_jobs.prepared_queries import PreparedQuery
from runtime_jobs.specs import ACTIONS
from runtime_jobs.specs.actions import OWN_WORKER
from runtime_jobs.states import FailureReason
from workers.models import Worker
from workers.registry.matching import offer_of

M = TypeVar("M")
R = TypeVar("R")

FinalDocument = dict[str, Any]  # the response to a final message

_ORGANIZATIONS = PreparedQuery(Organization, "WHERE t.slug = ANY (%s)")


@dataclass(frozen=True)
class LeaseCall(Generic[M]):
    """A message about one lease, and the claim that follows it.

    Attributes:
        lease_ulid: The lease.
        message: The message.
        claim: The claim of a final message, or None.
    """

    lease_ulid: str
    message: WorkerMessage[M]
    claim: ClaimRequest | None = None


@dataclass(frozen=True)
class ClaimCall:
    """A claim.

    Attributes:
        order: What the worker asks for.
        is_list: Whether the answer is a list of leases: the body has `max_leases`.
        idempotency: The idempotency key, or None.
    """

    order: ClaimOrder
    is_list: bool
    idempotency: IdempotentRequest | None


@dataclass(frozen=True)
class ClaimedDocuments:
    """The new leases as documents, and whether an earlier claim with the same key made them."""

    leases: list[dict[str, Any]]
    replayed: bool


def _read_claim(call: ApiCall) -> ClaimCall:
    worker = worker_of(call)
    validated = parse(serializers.ClaimInput, call.body)
    order = ClaimOrder(
        worker,
        _offer(worker, validated),
        limit=validated["max_leases"] or 1,
        acknowledge=validated["acknowledge"],
        session=worker_session(call),
    )
    return ClaimCall(order, bool(validated["max_leases"]), idempotent_request(call, "claim", call.body))


def _run_claim(calls: Sequence[ClaimCall]) -> Sequence[ClaimedDocuments | Exception]:
    """Claim for all workers, then render the leases of all. A claim with a key comes by itself."""
    for call in calls:
        clear_unready(call.order.worker)
    order, key = calls[0].order, calls[0].idempotency
    if key is None:
        return _documents(claiming.claim_for_workers([call.order for call in calls]))
    claims = claiming.claim_many(
        worker=order.worker,
        offer=order.offer,
        limit=order.limit,
        acknowledge=order.acknowledge,
        session=order.session,
        idempotency=key,
    )
    return _documents([claims])


def _documents(results: Sequence[list[Claimed] | Exception]) -> list[ClaimedDocuments | Exception]:
    """Render the leases of all, or those of each worker by itself if that fails: the claims must not be repeated."""
    claims = [claimed for result in results if not isinstance(result, Exception) for claimed in result]
    try:
        leases = iter(_serialize_claims(claims))
    except Exception as error:  # noqa: BLE001 it is the result of the worker whose lease it is
        if len(results) == 1:
            return [error]
        return [document for result in results for document in _documents([result])]
    return [
        result
        if isinstance(result, Exception)
        else ClaimedDocuments([next(leases) for _ in result], any(claimed.replayed for claimed in result))
        for result in results
    ]


def _answer_claim(call: ClaimCall, claimed: ClaimedDocuments) -> ApiAnswer:
    if not claimed.leases:
        return ApiAnswer(None, 204)
    headers = {"Idempotency-Replayed": "true"} if claimed.replayed else {}
    return ApiAnswer({"leases": claimed.leases} if call.is_list else claimed.leases[0], 201, headers)


def _read_acknowledge(call: ApiCall, lease_id: str) -> LeaseCall[None]:
    parse(EmptyBody, call.body)
    return LeaseCall(lease_id, WorkerMessage(worker_of(call), None, worker_session(call)))


def _read_heartbeat(call: ApiCall, lease_id: str) -> LeaseCall[HeartbeatUpdate]:
    validated = parse(serializers.HeartbeatInput, call.body)
    update = HeartbeatUpdate(phase=validated["phase"], progress=validated["progress"])
    return LeaseCall(lease_id, WorkerMessage(worker_of(call), update, worker_session(call)))


def _read_complete(call: ApiCall, lease_id: str) -> LeaseCall[CompleteMessage]:
    validated = parse(serializers.CompleteInput, call.body)
    return _final_call(call, lease_id, validated, CompleteMessage(**complete_arguments(validated["result"])))


def _read_fail(call: ApiCall, lease_id: str) -> LeaseCall[FailMessage]:
    validated = parse(serializers.FailInput, call.body)
    return _final_call(call, lease_id, validated, FailMessage(**fail_arguments(validated["result"])))


def _final_call(call: ApiCall, lease_id: str, validated: dict[str, Any], message: M) -> LeaseCall[M]:
    worker, session, claim_next = worker_of(call), worker_session(call), validated["claim_next"]
    request = ClaimRequest(_offer(worker, claim_next), claim_next["acknowledge"], session) if claim_next else None
    return LeaseCall(lease_id, WorkerMessage(worker, message, session), request)


def _run_acknowledge(calls: Sequence[LeaseCall[None]]) -> Sequence[Job | Exception]:
    return list(batch_calls.acknowledge_many(_messages(calls)).values())


def _run_heartbeat(calls: Sequence[LeaseCall[HeartbeatUpdate]]) -> Sequence[HeartbeatResult | Exception]:
    return list(batch_calls.renew_many(_messages(calls)).values())


def _run_complete(calls: Sequence[LeaseCall[CompleteMessage]]) -> Sequence[FinalDocument | Exception]:
    def alone(lease_ulid: str, message: WorkerMessage[CompleteMessage], claim: ClaimRequest) -> Finished:
        for refusal in _refused_runs({lease_ulid: message}).values():
            raise refusal
        content = with_read_results({lease_ulid: message})[lease_ulid].content
        return complete_and_claim(lease_ulid=lease_ulid, worker=message.worker, message=content, claim=claim)

    return _end_each(calls, complete_many, alone)


def _run_fail(calls: Sequence[LeaseCall[FailMessage]]) -> Sequence[FinalDocument | Exception]:
    def alone(lease_ulid: str, message: WorkerMessage[FailMessage], claim: ClaimRequest) -> Finished:
        return fail_and_claim(lease_ulid=lease_ulid, worker=message.worker, message=message.content, claim=claim)

    return _end_each(calls, batch_calls.fail_many, alone)


def complete_many(messages: Messages[CompleteMessage]) -> Results[Ended]:
    """Complete jobs. A run must be held by the reference ingest, unless another ingest is used."""
    refusals = _refused_runs(messages)
    accepted = {lease_ulid: message for lease_ulid, message in messages.items() if lease_ulid not in refusals}
    return refusals | (batch_calls.complete_many(with_read_results(accepted)) if accepted else {})


def _refused_runs(messages: Messages[CompleteMessage]) -> dict[str, LifecycleError]:
    if settings.INGEST_URL:
        return {}
    runs = {name: message.content.ingest_run_id for name, message in messages.items() if message.content.ingest_run_id}
    return refused_runs(runs, owners={lease_ulid: message.worker for lease_ulid, message in messages.items()})


def _end_each(
    calls: Sequence[LeaseCall[M]],
    end_many: Callable[[Messages[M]], Results[Ended]],
    end_and_claim: Callable[[str, WorkerMessage[M], ClaimRequest], Finished],
) -> list[FinalDocument | LifecycleError]:
    """Run final messages and then the claims that they carry. A message by itself is one statement with its claim."""
    call, *others = calls
    if not others and call.claim is not None:
        finished = end_and_claim(call.lease_ulid, call.message, call.claim)
        claims = {call.lease_ulid: finished.next_claim} if finished.next_claim else {}
        return _final_documents(calls, {call.lease_ulid: finished.job}, claims)
    results = end_many(_messages(calls))
    ended = {name: result for name, result in results.items() if not isinstance(result, LifecycleError)}
    requests = {
        call.lease_ulid: (call.message.worker, call.claim)
        for call in calls
        if call.claim is not None and call.lease_ulid in ended
    }
    outcomes = {name: result.job if isinstance(result, Ended) else result for name, result in results.items()}
    return _final_documents(calls, outcomes, claim_after(ended, requests) if requests else {})


def _final_documents(
    calls: Sequence[LeaseCall[Any]], outcomes: Mapping[str, Job | LifecycleError], claims: Mapping[str, Claimed]
) -> list[FinalDocument | LifecycleError]:
    leases = dict(zip(claims, _serialize_claims(list(claims.values())), strict=True))

    def document(call: LeaseCall[Any]) -> FinalDocument | LifecycleError:
        outcome = outcomes[call.lease_ulid]
        if isinstance(outcome, LifecycleError):
            return outcome
        return wire.serialize_status(outcome) | ({"next_lease": leases.get(call.lease_ulid)} if call.claim else {})

    return [document(call) for call in calls]


def _first_of_lease(calls: Sequence[LeaseCall[Any]]) -> list[bool]:
    """A second message about a lease must follow the first one."""
    return _are_first([call.lease_ulid for call in calls])


def _first_without_key(calls: Sequence[ClaimCall]) -> list[bool]:
    """A second claim of a worker must follow the first one, and one with a key takes a transaction of its own."""
    firsts = _are_first([call.order.worker.pk for call in calls])
    return [first and call.idempotency is None for first, call in zip(firsts, calls, strict=True)]


def _are_first(names: Sequence[Hashable]) -> list[bool]:
    first = {name: place for place, name in reversed(list(enumerate(names)))}
    return [first[name] == place for place, name in enumerate(names)]


def _messages(calls: Sequence[LeaseCall[M]]) -> Messages[M]:
    return {call.lease_ulid: call.message for call in calls}


def _answer_status(_: LeaseCall[Any], job: Job) -> ApiAnswer:
    return ApiAnswer(wire.serialize_status(job))


def _answer_heartbeat(_: LeaseCall[HeartbeatUpdate], renewed: HeartbeatResult) -> ApiAnswer:
    return ApiAnswer(wire.serialize_heartbeat(renewed.job, renewed.lease, renewed.now))


def _answer_document(_: LeaseCall[Any], document: FinalDocument) -> ApiAnswer:
    return ApiAnswer(document)


# Claim the next jobs: 201 with the lease, or with a list if the body has `max_leases`; 204 without a job.
claim = CombinedCall(_read_claim, _run_claim, _answer_claim, _first_without_key)
# Acknowledge a new lease.
acknowledge = CombinedCall(_read_acknowledge, _run_acknowledge, _answer_status, _first_of_lease)
# Extend a lease.
heartbeat = CombinedCall(_read_heartbeat, _run_heartbeat, _answer_heartbeat, _first_of_lease)
# End a job as `uploaded` or `succeeded`; with `claim_next` also claim the next one.
complete = CombinedCall(_read_complete, _run_complete, _answer_document, _first_of_lease)
# End a job as `failed`; with `claim_next` also claim the next one.
fail = CombinedCall(_read_fail, _run_fail, _answer_document, _first_of_lease)


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
        "is_final": result["final"],
    }


def _offer(worker: Worker, validated: dict[str, Any]) -> Offer:
    if validated["worker_id"] != worker.worker_id:
        raise WorkerMismatch("worker_id: This token belongs to another worker.")
    if validated["pool"] not in {None, worker.pool.slug}:
        raise PoolForbidden(f"pool: This worker is registered in the pool {worker.pool.slug}; name that one or none.")
    offered, isolation = offer_of(worker, labels=validated["labels"], capabilities=validated["capabilities"])
    job_types = tuple(validated["job_types"])
    if ACTIONS in job_types:
        offered |= {OWN_WORKER}
    return Offer(worker.worker_id, worker.pool.slug, job_types, offered, isolation)


def _serialize_claims(claims: Sequence[Claimed]) -> list[dict[str, Any]]:
    images = image_members(claims)
    # A workflow job reaches what its organization permits.
    networks = {
        claimed.job.job_ulid for claimed in claims if claimed.job.allow_network or claimed.job.job_type == ACTIONS
    }
    networks |= {name for name, image in images.items() if image["machine"] and image["machine"]["network"]}
    with_network = {claimed.job.org_slug for claimed in claims if claimed.job.job_ulid in networks}
    egress = {row.slug: row.egress for row in _ORGANIZATIONS.all(list(with_network))} if with_network else {}
    to_resend = [claimed.job for claimed in claims if RESEND in claimed.job.requirements]
    unsent_runs: dict[Any, Any] = {}
    if to_resend:
        unsent_runs = dict(UnsentRun.objects.filter(job__in=to_resend).values_list("job_id", "payload"))
    return [
        wire.serialize_lease(
            claimed.lease,
            claimed.job,
            egress=egress[claimed.job.org_slug] if claimed.job.job_ulid in networks else [],
            unsent_run=unsent_runs.get(claimed.job.job_ulid),
            image=images.get(claimed.job.job_ulid),
        )
        for claimed in claims
    ]
