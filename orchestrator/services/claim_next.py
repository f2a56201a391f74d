"""Ends a job and claims the next one for the same worker.

So a worker with one slot sends one message per job instead of two. A refused final message claims nothing. The final
message counts also if the claim finds nothing, or if the state of the worker does not allow it.

Both are one statement unless the job holds slots of limits or is queued again. Then the claim follows after the commit,
because in one transaction the two would lock lanes out of order and meet deadlocks. The claims of many workers always
follow the final messages of all of them (`claim_after`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import DatabaseError
from django.utils.crypto import salted_hmac

from leases.errors import StaleLease, WorkerLocked
from leases.fencing import LockedLease
from leases.models import Lease
from leases.scheduling.claims import AttachedClaim, Offer
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services.batch_calls import Ended
from orchestrator.services.claiming import Claimed, ClaimOrder, claim_for_workers, claim_one
from orchestrator.services.job_end import (
    CompleteMessage,
    FailMessage,
    apply_failure,
    apply_success,
    lock_for_final,
    require_transaction_to_fail,
    runs_in_use,
)
from runtime_jobs.db_errors import log_level_of
from runtime_jobs.identifiers import derived_id
from runtime_jobs.models import Job
from workers.models import Worker

log = logging.getLogger(__name__)

_ENTROPY_BYTES = 10


@dataclass(frozen=True)
class ClaimRequest:
    """The claim that follows a final message.

    Attributes:
        offer: The pool, job types, isolation and capabilities that the worker offers.
        acknowledge: Whether the worker promises to acknowledge the lease.
        session: The ULID of the worker's process, or empty. A replaced process gets no lease.
    """

    offer: Offer
    acknowledge: bool = False
    session: str = ""


@dataclass(frozen=True)
class Finished:
    """A job after its final message, and the claim that followed.

    Attributes:
        job: The job that has ended.
        next_lease: Returns the next lease, or None. The claim is made when the operation is written.
    """

    job: Job
    next_lease: Callable[[], Lease | None]

    @property
    def next_claim(self) -> Claimed | None:
        """The next job and its lease; None if the claim found nothing."""
        lease = self.next_lease()
        return None if lease is None else Claimed(lease.job, lease)


@operation(optimistic=True, retry_unique_violation="ingest_run_id")
def complete_and_claim(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    message: CompleteMessage,
    claim: ClaimRequest,
    now: datetime | None = None,
) -> Finished:
    """End the job as succeeded, and claim the next one; see `complete` and `claim`. A late result claims nothing.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        message: The content of the final message.
        claim: The claim. The same message again returns the lease of this claim while it is open, and claims nothing.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Conflict: Another final message ended the lease, or another job has this run.
        Invalid: The run is missing, or the job type has no run.
    """
    _lock_worker(uow, worker)
    locked, is_repeated = lock_for_final(uow, lease_ulid, worker, message.digest, now, may_be_late=True)
    if is_repeated:
        return _repeated(locked, worker)
    is_late = not locked.lease.is_open
    apply_success(uow, locked, worker, message, runs_in_use(uow, [message]))
    return _repeated(locked, worker) if is_late else _claim(uow, locked, worker, claim, now)


@operation(optimistic=True)
def fail_and_claim(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    message: FailMessage,
    claim: ClaimRequest,
    now: datetime | None = None,
) -> Finished:
    """End the job as failed, or as canceled if a cancel was requested, and claim the next one; see `fail` and `claim`.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        message: The content of the final message.
        claim: The claim. The same message again returns the lease of this claim while it is open, and claims nothing.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Conflict: Another final message ended the lease.
    """
    require_transaction_to_fail(uow, message.reason)
    _lock_worker(uow, worker)
    locked, is_repeated = lock_for_final(uow, lease_ulid, worker, message.digest, now)
    if is_repeated:
        return _repeated(locked, worker)
    apply_failure(uow, locked, worker, message)
    return _claim(uow, locked, worker, claim, now)


def claim_after(ended: Mapping[str, Ended], requests: Mapping[str, tuple[Worker, ClaimRequest]]) -> dict[str, Claimed]:
    """Make the claims that final messages carry. The messages were stored, and count in any case.

    Args:
        ended: What the messages have ended, by the id of the lease.
        requests: The worker and the claim of each message, likewise.

    Returns:
        The next lease of each message that has one: a new one, or that of the first message if this is its repetition.
    """
    next_leases = {name: next_lease_ulid(ended[name].lease) for name in requests}
    new = [name for name in requests if ended[name].is_new]
    found: dict[str, Claimed] = {}  # by the id of the next lease
    for claims in _claims_of([_order(*requests[name], next_leases[name]) for name in new]):
        found |= {claimed.lease.lease_ulid: claimed for claimed in claims}
    if repeated := [next_leases[name] for name in requests if name not in new]:
        open_leases = Lease.objects.open().select_related("job").filter(lease_ulid__in=repeated)
        found |= {lease.lease_ulid: Claimed(lease.job, lease) for lease in open_leases}
    followers = {name: found[lease_ulid] for name, lease_ulid in next_leases.items() if lease_ulid in found}
    return {
        name: claimed for name, claimed in followers.items() if claimed.lease.worker_id == requests[name][0].worker_id
    }


def _order(worker: Worker, request: ClaimRequest, lease_ulid: str) -> ClaimOrder:
    return ClaimOrder(worker, request.offer, 1, request.acknowledge, request.session, lease_ulid)


def _claims_of(orders: Sequence[ClaimOrder]) -> list[list[Claimed]]:
    """Return the claims of each order: none if the worker was left out, or on an error."""
    results = claim_for_workers(orders) if orders else []
    for error in {id(result): result for result in results if isinstance(result, Exception)}.values():
        if isinstance(error, DatabaseError):
            log.log(log_level_of(error), "no claims after final messages; the workers claim again", exc_info=error)
        elif not isinstance(error, StaleLease | WorkerLocked):
            raise error
    return [[] if isinstance(result, Exception) else result for result in results]


def next_lease_ulid(lease: Lease) -> str:
    """Return the id of the lease that follows this one, which has ended.

    The id is derived, so that a repeated final message finds the lease without a stored reference. Computing it
    takes the secret key of this installation.
    """
    assert lease.completed_at is not None  # noqa: S101 set with the end of the lease
    digest = salted_hmac("orchestrator.next_lease", lease.lease_ulid, algorithm="sha256").digest()
    return derived_id("rtl", made_at=lease.completed_at, entropy=digest[:_ENTROPY_BYTES])


def _lock_worker(uow: UnitOfWork, worker: Worker) -> None:
    """Lock the worker before the job, as the statement of an optimistic attempt does: see `write_and_claim`."""
    if not uow.is_optimistic:
        list(Worker.objects.locked().filter(pk=worker.pk).values_list("pk"))


def _repeated(locked: LockedLease, worker: Worker) -> Finished:
    followers = (
        Lease.objects.open().select_related("job").filter(lease_ulid=next_lease_ulid(locked.lease), worker=worker)
    )
    lease = followers.first()
    return Finished(locked.job, lambda: lease)


def _claim(uow: UnitOfWork, ended: LockedLease, worker: Worker, claim: ClaimRequest, now: datetime | None) -> Finished:
    lease_ulid = next_lease_ulid(ended.lease)
    next_claim = AttachedClaim(worker, claim.offer, claim.acknowledge, claim.session, lease_ulid, now)
    uow.next_claim = next_claim
    uow.after_commit(_claim_separately, next_claim)
    return Finished(ended.job, lambda: next_claim.lease)


def _claim_separately(next_claims: list[AttachedClaim]) -> None:
    """Make the claims that the statement of the final message has left out. The message counts in any case."""
    for claim in next_claims:
        if not claim.is_separate:
            continue
        try:
            claimed = claim_one(claim)
        except StaleLease:  # a newer process has replaced this one
            continue
        except DatabaseError as error:
            message = "no claim after the final message of a job; the worker %s claims again"
            log.log(log_level_of(error), message, claim.worker.pk, exc_info=True)
            continue
        claim.lease = claimed
