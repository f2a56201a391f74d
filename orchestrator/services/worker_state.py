"""Operations of operators on leases and workers."""

from datetime import datetime

from leases.fencing import lock_current_lease
from leases.models import Lease
from leases.states import LeaseState
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services.expiry import end_lease_externally
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from workers.models import ActionsRunner, Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import WORKER_PREFIX, digest_of, new_token


@operation
def revoke(uow: UnitOfWork, *, job_ulid: str, actor: Actor, reason: str, now: datetime | None = None) -> Job | None:
    """Revoke the lease of a job. A running job fails as `worker_lost`, an unacknowledged one is queued again.

    Args:
        job_ulid: The job.
        actor: The operator.
        reason: A text for people.

    Returns:
        The job, or None if it has no open lease.
    """
    locked = lock_current_lease(job_ulid=job_ulid, now=now)
    if locked is None:
        return None
    return end_lease_externally(
        uow,
        locked,
        actor=actor,
        active_ends=LeaseState.REVOKED,
        reason=FailureReason.WORKER_LOST,
        message=f"Revoked: {reason}",
    )


def revoke_leases_of(*, worker_id: str, actor: Actor, reason: str) -> int:
    """Revoke all leases of a worker, each in a transaction of its own.

    Args:
        worker_id: The worker.
        actor: The operator.
        reason: A text for people.

    Returns:
        The number of leases.
    """
    leased = Lease.objects.open().filter(worker_id=worker_id).values_list("job__job_ulid", flat=True)
    return sum(revoke(job_ulid=job_ulid, actor=actor, reason=reason) is not None for job_ulid in list(leased))


@operation
def set_worker_state(
    _: UnitOfWork,
    *,
    worker_id: str,
    state: WorkerState,
    cause: Cause,
    note: str = "",
) -> Worker:
    """Activate, drain, put into maintenance or revoke a worker.

    A revocation is final and does not end leases: call `revoke_leases_of` after it.

    Args:
        worker_id: The worker.
        state: The new state. The same state again only changes the note.
        note: A text for people, stored with the worker.

    Raises:
        NotFound: The worker does not exist or was revoked.
        ResourceConflict: The worker is an archived runner, and the new state is not revoked.
    """
    worker = _lock_worker(worker_id)
    if worker.archived_at is not None and state != WorkerState.REVOKED:
        raise ResourceConflict(f"The runner {worker.slug} is archived. Restore it first.")
    before = {"state": worker.state, "note": worker.note}
    worker.state, worker.note = state, note
    worker.save(update_fields=["state", "note"])
    record_operator_event(
        "worker.state",
        target=worker_id,
        cause=cause,
        before=before,
        after={"state": str(state), "note": note},
    )
    return worker


@operation
def rotate_worker_token(
    _: UnitOfWork,
    *,
    worker_id: str,
    cause: Cause,
) -> str:
    """Give a worker a new token and return it. The old token becomes invalid.

    A runner has a key instead, which `rotate_runner_key` replaces. A token would open the native API to it.

    Args:
        worker_id: The worker.

    Raises:
        NotFound: The worker does not exist or was revoked.
        ResourceConflict: The worker is a runner.
    """
    worker, token = _lock_worker(worker_id), new_token(WORKER_PREFIX)
    if worker.is_runner or worker.archived_at is not None:  # the pool of runners may have been another one
        raise ResourceConflict(f"The worker {worker.slug} is a runner and has no token. Rotate its key instead.")
    if ActionsRunner.objects.filter(worker=worker).exists():
        raise ResourceConflict(f"{worker.slug} is a runner of workflow jobs. Rotate its registration token instead.")
    worker.digest = digest_of(token)
    worker.save(update_fields=["digest"])
    record_operator_event("worker.token_rotated", target=worker_id, cause=cause)
    return token


def _lock_worker(worker_id: str) -> Worker:
    worker = Worker.objects.locked().filter(worker_id=worker_id).exclude(state=WorkerState.REVOKED).first()
    if worker is None:
        raise NotFound("The worker does not exist or was revoked.")
    return worker
