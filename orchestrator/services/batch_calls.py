"""Messages of a worker about many jobs in one call: one transaction, and as many statements for 100 jobs as for one.

Each job follows the same rules as in a call of its own. A refusal is a value among the results. It leaves no change,
unless the heartbeat itself has ended an overdue job: see `renew`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

from leases.errors import StaleLease
from leases.fencing import LockedLease, lock_leases
from orchestrator.core.unit_of_work import NeedsTransaction, UnitOfWork, operation
from orchestrator.services.heartbeat import (
    HeartbeatResult,
    HeartbeatUpdate,
    renew_lease,
    save_acknowledged,
    validate_and_acknowledge,
)
from orchestrator.services.job_end import (
    CompleteMessage,
    FailMessage,
    apply_failure,
    apply_success,
    is_duplicate,
    require_transaction_to_fail,
    runs_in_use,
)
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from workers.models import Worker


@dataclass(frozen=True)
class WorkerHeartbeat:
    """The heartbeat of one of several workers.

    Attributes:
        worker: The worker that holds the lease.
        update: The content of the heartbeat.
        session: The ULID of the worker's process, or None.
    """

    worker: Worker
    update: HeartbeatUpdate = field(default_factory=HeartbeatUpdate)
    session: str | None = None


M = TypeVar("M")
R = TypeVar("R")
Messages = Mapping[str, M]  # by lease id
Results = dict[str, R | LifecycleError]  # by lease id


@operation(optimistic=True)
def acknowledge_many(
    uow: UnitOfWork,
    messages: Messages[None],
    *,
    worker: Worker,
    session: str | None = None,
    now: datetime | None = None,
) -> Results[Job]:
    """Acknowledge each of these leases; see `acknowledge`."""

    def apply(locked: LockedLease, _: None) -> Job:
        is_started = validate_and_acknowledge(uow, locked, worker, session)
        return save_acknowledged(uow, locked, is_started=is_started)

    return _apply_each(uow, messages, worker, now, apply)


@operation(optimistic=True)
def renew_many(
    uow: UnitOfWork,
    messages: Messages[HeartbeatUpdate],
    *,
    worker: Worker,
    session: str | None = None,
    now: datetime | None = None,
) -> Results[HeartbeatResult]:
    """Renew each of these leases; see `renew`."""

    def apply(locked: LockedLease, update: HeartbeatUpdate) -> HeartbeatResult | StaleLease:
        is_started = validate_and_acknowledge(uow, locked, worker, session)
        return renew_lease(uow, locked, worker, update, is_started=is_started)

    return _apply_each(uow, messages, worker, now, apply)


def renew_across_workers(
    messages: Messages[WorkerHeartbeat], *, now: datetime | None = None
) -> Results[HeartbeatResult]:
    """Renew leases of several workers with as many statements as one lease; see `renew`.

    For a process that receives the heartbeats of many workers on connections of their own. The few heartbeats that need
    a transaction, such as those that begin a minute to bill, follow in one of their own. Else nearly every call with
    hundreds of leases would be repeated under locks.
    """
    results = _renew_across_workers(messages, now=now)
    undecided = {lease_ulid: heartbeat for lease_ulid, heartbeat in messages.items() if lease_ulid not in results}
    if undecided:
        results |= _renew_undecided(undecided, now=now)
    return {lease_ulid: results[lease_ulid] for lease_ulid in messages}


@operation(optimistic=True)
def _renew_across_workers(
    uow: UnitOfWork, messages: Messages[WorkerHeartbeat], *, now: datetime | None
) -> Results[HeartbeatResult]:
    """Return the results of all heartbeats, or without a transaction only of those that need none."""
    owners = _owners(messages)
    if not uow.is_optimistic:
        return _apply_to_owned(uow, messages, owners, now, partial(_renew, uow))
    locked = lock_leases(owners=owners, now=now, versions=uow.versions)
    results: Results[HeartbeatResult] = {}
    for lease_ulid in (name for name in messages if name in locked):
        try:
            with uow.undo_if_undecided(locked[lease_ulid]):
                results[lease_ulid] = _renew(uow, locked[lease_ulid], messages[lease_ulid])
        except NeedsTransaction:
            continue
    return results


@operation
def _renew_undecided(
    uow: UnitOfWork, messages: Messages[WorkerHeartbeat], *, now: datetime | None
) -> Results[HeartbeatResult]:
    return _apply_to_owned(uow, messages, _owners(messages), now, partial(_renew, uow))


def _renew(uow: UnitOfWork, locked: LockedLease, heartbeat: WorkerHeartbeat) -> HeartbeatResult | StaleLease:
    is_started = validate_and_acknowledge(uow, locked, heartbeat.worker, heartbeat.session)
    return renew_lease(uow, locked, heartbeat.worker, heartbeat.update, is_started=is_started)


def _owners(messages: Messages[WorkerHeartbeat]) -> dict[str, Worker]:
    return {lease_ulid: heartbeat.worker for lease_ulid, heartbeat in messages.items()}


@operation(optimistic=True, retry_unique_violation="ingest_run_id")
def complete_many(
    uow: UnitOfWork, messages: Messages[CompleteMessage], *, worker: Worker, now: datetime | None = None
) -> Results[Job]:
    """Complete the job of each of these leases; see `complete`."""
    used_runs: set[str] | None = None

    def apply(locked: LockedLease, message: CompleteMessage) -> Job:
        nonlocal used_runs
        if is_duplicate(locked, message.digest, may_be_late=True):
            return locked.job
        used_runs = runs_in_use(uow, messages.values()) if used_runs is None else used_runs  # read under the locks
        return apply_success(uow, locked, worker, message, used_runs)

    return _apply_each(uow, messages, worker, now, apply)


@operation(optimistic=True)
def fail_many(
    uow: UnitOfWork, messages: Messages[FailMessage], *, worker: Worker, now: datetime | None = None
) -> Results[Job]:
    """Fail the job of each of these leases; see `fail`."""

    def apply(locked: LockedLease, message: FailMessage) -> Job:
        if is_duplicate(locked, message.digest):
            return locked.job
        return apply_failure(uow, locked, worker, message)

    require_transaction_to_fail(uow, (message.reason for message in messages.values()))
    return _apply_each(uow, messages, worker, now, apply, whole=True)  # a retry copies the specification


def _apply_each(
    uow: UnitOfWork,
    messages: Messages[M],
    worker: Worker,
    now: datetime | None,
    apply: Callable[[LockedLease, M], R | LifecycleError],
    *,
    whole: bool = False,
) -> Results[R]:
    return _apply_to_owned(uow, messages, dict.fromkeys(messages, worker), now, apply, whole=whole)


def _apply_to_owned(
    uow: UnitOfWork,
    messages: Messages[M],
    owners: Mapping[str, Worker],
    now: datetime | None,
    apply: Callable[[LockedLease, M], R | LifecycleError],
    *,
    whole: bool = False,
) -> Results[R]:
    locked = lock_leases(owners=owners, now=now, whole=whole, versions=uow.versions)
    return {
        lease_ulid: _apply_one(uow, locked.get(lease_ulid), message, apply) for lease_ulid, message in messages.items()
    }


def _apply_one(
    uow: UnitOfWork,
    locked: LockedLease | None,
    message: M,
    apply: Callable[[LockedLease, M], R | LifecycleError],
) -> R | LifecycleError:
    if locked is None:
        uow.require_transaction()  # a refusal is confirmed in a transaction
        return StaleLease("unknown_lease")
    try:
        with uow.undo_if_refused(locked):
            return apply(locked, message)
    except LifecycleError as refusal:
        return refusal
