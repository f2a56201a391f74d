"""What only operators may do: take a lease away, and change the state of a worker."""

from datetime import datetime
from typing import Any

from leases.fencing import lock_current_lease
from leases.models import Lease
from leases.states import LeaseState
from orchestrator.services.expiry import end_lease_externally
from orchestrator.services.unit_of_work.operation import operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.events import Actor
from runtime_jobs.identifiers import new_event_id
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.states import FailureReason
from workers.models import Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import WORKER_PREFIX, digest_of, new_token


@operation
def revoke(*, job_ulid: str, actor: Actor, reason: str, now: datetime | None = None) -> Job | None:
    """Take the job's lease away: what runs fails as `worker_lost`, what was not taken up waits again.

    None where the job has no open lease (any more)."""
    holding = lock_current_lease(job_ulid=job_ulid, now=now)
    if holding is None:
        return None
    return end_lease_externally(
        holding,
        actor=actor,
        active_ends=LeaseState.REVOKED,
        reason=FailureReason.WORKER_LOST,
        message=f"Revoked: {reason}",
    )


@operation
def set_worker_state(
    *,
    worker_id: str,
    state: WorkerState,
    actor: Actor,
    note: str = "",
    reason: str = "",
    source_address: str | None = None,
    now: datetime | None = None,
) -> Worker:
    """Activate, drain, put into maintenance or revoke a worker. The same state again only changes the note.

    Raises NotFound, also for a revoked worker: that is for good. Call `revoke_leases_of` after a revocation."""
    worker = _locked(worker_id)
    before = {"state": worker.state, "note": worker.note}
    worker.state, worker.note = state, note
    worker.save(update_fields=["state", "note"])
    record_operator_event(
        "worker.state",
        target=worker_id,
        actor=actor,
        before=before,
        after={"state": str(state), "note": note},
        reason=reason,
        source_address=source_address,
        now=now,
    )
    return worker


def revoke_leases_of(*, worker_id: str, actor: Actor, reason: str) -> int:
    """Revoke whatever the worker holds, one job a transaction. Returns how many there were."""
    held = Lease.objects.open().filter(worker_id=worker_id).values_list("job__job_ulid", flat=True)
    return sum(revoke(job_ulid=job_ulid, actor=actor, reason=reason) is not None for job_ulid in list(held))


@operation
def rotate_worker_token(
    *, worker_id: str, actor: Actor, reason: str = "", source_address: str | None = None, now: datetime | None = None
) -> str:
    """Give the worker a new token and return it, once; the old one counts no more. Raises NotFound."""
    worker, token = _locked(worker_id), new_token(WORKER_PREFIX)
    worker.digest = digest_of(token)
    worker.save(update_fields=["digest"])
    record_operator_event(
        "worker.token_rotated", target=worker_id, actor=actor, reason=reason, source_address=source_address, now=now
    )
    return token


def _locked(worker_id: str) -> Worker:
    worker = Worker.objects.locked().filter(worker_id=worker_id).exclude(state=WorkerState.REVOKED).first()
    if worker is None:
        raise NotFound("There is no such worker, or it was revoked.")
    return worker


def record_operator_event(
    action: str,
    *,
    target: str,
    actor: Actor,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    reason: str = "",
    source_address: str | None = None,
    now: datetime | None = None,
) -> OperatorEvent:
    """Write down what a person did that concerns no single job, in the transaction that does it."""
    return OperatorEvent.objects.create(
        event_ulid=new_event_id(),
        action=action,
        actor=str(actor),
        target=target,
        before=before,
        after=after,
        reason=reason,
        source_address=source_address,
        created_at=now or database_now(),
    )
