"""Messages about many leases in one call, with as many statements for 100 leases as for one.

Each lease follows the same rules as in a call of its own. A refusal is a value among the results. It leaves no change,
unless the heartbeat itself has ended an overdue job: see `renew`.

Most messages are decided by an optimistic attempt, which is stored by one statement. The few that need a transaction,
such as refusals and the ends of awaited jobs, follow together in a transaction of their own. Else nearly every call
with hundreds of leases would be repeated under locks. Two steps change nothing for a caller: no lease depends on
another one of the call.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from leases.errors import StaleLease
from leases.fencing import LockedLease, lock_leases
from leases.models import Lease
from orchestrator.core.unit_of_work import NeedsTransaction, UnitOfWork, operation
from orchestrator.services.heartbeat import (
    HeartbeatResult,
    HeartbeatUpdate,
    renew_lease,
    save_acknowledged,
    validate_and_acknowledge,
)
from orchestrator.services.job_end import (
    NEEDING_TRANSACTION,
    CompleteMessage,
    FailMessage,
    apply_failure,
    apply_success,
    is_duplicate,
    runs_in_use,
)
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from workers.models import Worker

M = TypeVar("M")
R = TypeVar("R")


@dataclass(frozen=True)
class WorkerMessage(Generic[M]):
    """A message about one lease.

    Attributes:
        worker: The worker that sent it, which must hold the lease.
        content: What it says.
        session: The ULID of the worker's process, or None.
    """

    worker: Worker
    content: M
    session: str | None = None


@dataclass(frozen=True)
class Ended:
    """The job of a lease after its final message.

    Attributes:
        job: The job.
        lease: The lease.
        is_new: Whether this message has ended the lease: it is no repetition, and no late result.
    """

    job: Job
    lease: Lease
    is_new: bool


Messages = Mapping[str, WorkerMessage[M]]  # by lease id
Results = dict[str, R | LifecycleError]  # by lease id
# Decides one message about a lease that was read. A new one decides the messages of each attempt.
Decide = Callable[[LockedLease, WorkerMessage[M]], R | LifecycleError]
Decider = Callable[[UnitOfWork, Messages[M]], Decide[M, R]]


def messages_of(
    worker: Worker, contents: Mapping[str, M], *, session: str | None = None
) -> dict[str, WorkerMessage[M]]:
    """Return messages of one worker by the ids of its leases."""
    return {lease_ulid: WorkerMessage(worker, content, session) for lease_ulid, content in contents.items()}


def acknowledge_many(messages: Messages[None], *, now: datetime | None = None) -> Results[Job]:
    """Acknowledge each of these leases; see `acknowledge`."""

    def decider(uow: UnitOfWork, _: Messages[None]) -> Decide[None, Job]:
        def decide(locked: LockedLease, message: WorkerMessage[None]) -> Job:
            is_started = validate_and_acknowledge(uow, locked, message.worker, message.session)
            return save_acknowledged(uow, locked, is_started=is_started)

        return decide

    return _decide_each(decider, messages, now)


def renew_many(messages: Messages[HeartbeatUpdate], *, now: datetime | None = None) -> Results[HeartbeatResult]:
    """Renew each of these leases; see `renew`."""

    def decider(uow: UnitOfWork, _: Messages[HeartbeatUpdate]) -> Decide[HeartbeatUpdate, HeartbeatResult]:
        def decide(locked: LockedLease, message: WorkerMessage[HeartbeatUpdate]) -> HeartbeatResult | StaleLease:
            is_started = validate_and_acknowledge(uow, locked, message.worker, message.session)
            return renew_lease(uow, locked, message.worker, message.content, is_started=is_started)

        return decide

    return _decide_each(decider, messages, now)


def complete_many(messages: Messages[CompleteMessage], *, now: datetime | None = None) -> Results[Ended]:
    """Complete the job of each of these leases; see `complete`."""

    def decider(uow: UnitOfWork, attempted: Messages[CompleteMessage]) -> Decide[CompleteMessage, Ended]:
        used_runs: set[str] | None = None

        def decide(locked: LockedLease, message: WorkerMessage[CompleteMessage]) -> Ended:
            nonlocal used_runs
            if is_duplicate(locked, message.content.digest, may_be_late=True):
                return Ended(locked.job, locked.lease, is_new=False)
            if used_runs is None:  # read under the locks
                used_runs = runs_in_use(uow, (other.content for other in attempted.values()))
            is_new = locked.lease.is_open
            job = apply_success(uow, locked, message.worker, message.content, used_runs)
            return Ended(job, locked.lease, is_new)

        return decide

    return _decide_each(decider, messages, now)


def fail_many(messages: Messages[FailMessage], *, now: datetime | None = None) -> Results[Ended]:
    """Fail the job of each of these leases; see `fail`."""

    def decider(uow: UnitOfWork, _: Messages[FailMessage]) -> Decide[FailMessage, Ended]:
        def decide(locked: LockedLease, message: WorkerMessage[FailMessage]) -> Ended:
            if is_duplicate(locked, message.content.digest):
                return Ended(locked.job, locked.lease, is_new=False)
            return Ended(apply_failure(uow, locked, message.worker, message.content), locked.lease, is_new=True)

        return decide

    at_once = {name for name, message in messages.items() if message.content.reason in NEEDING_TRANSACTION}
    return _decide_each(decider, messages, now, at_once=at_once, whole=True)  # a retry copies the specification


def _decide_each(
    decider: Decider[M, R],
    messages: Messages[M],
    now: datetime | None,
    *,
    at_once: Collection[str] = (),
    whole: bool = False,
) -> Results[R]:
    """Decide the messages in the two steps of this module.

    Args:
        decider: Makes what decides the messages of one attempt.
        messages: The messages.
        now: Replaces the database's clock, for tests.
        at_once: Leases whose messages are known to need a transaction.
        whole: Read the specification of the jobs, too, if the messages are decided in a transaction.
    """
    tried = {lease_ulid: message for lease_ulid, message in messages.items() if lease_ulid not in at_once}
    results = _decide_optimistically(decider, tried, now, whole=whole) if tried else {}
    undecided = {lease_ulid: message for lease_ulid, message in messages.items() if lease_ulid not in results}
    if undecided:
        results |= _decide_in_transaction(decider, undecided, now, whole=whole)
    return {lease_ulid: results[lease_ulid] for lease_ulid in messages}


@operation(optimistic=True, retry_unique_violation="ingest_run_id")
def _decide_optimistically(
    uow: UnitOfWork, decider: Decider[M, R], messages: Messages[M], now: datetime | None, *, whole: bool
) -> Results[R]:
    """Return the results of the messages that need no transaction; of all, if the attempt is repeated in one."""
    if not uow.is_optimistic:
        return _decide_locked(uow, decider, messages, now, whole=whole)
    decide = decider(uow, messages)
    results: Results[R] = {}
    locked = lock_leases(owners=_owners(messages), now=now, versions=uow.versions)
    for lease_ulid in (name for name in messages if name in locked):
        try:
            with uow.undo_if_undecided(locked[lease_ulid]):
                results[lease_ulid] = decide(locked[lease_ulid], messages[lease_ulid])
        except NeedsTransaction:
            continue
    return results


@operation(retry_unique_violation="ingest_run_id")
def _decide_in_transaction(
    uow: UnitOfWork, decider: Decider[M, R], messages: Messages[M], now: datetime | None, *, whole: bool
) -> Results[R]:
    return _decide_locked(uow, decider, messages, now, whole=whole)


def _decide_locked(
    uow: UnitOfWork, decider: Decider[M, R], messages: Messages[M], now: datetime | None, *, whole: bool
) -> Results[R]:
    decide = decider(uow, messages)
    results: Results[R] = {}
    locked = lock_leases(owners=_owners(messages), now=now, whole=whole)
    for lease_ulid, message in messages.items():
        if lease_ulid not in locked:
            results[lease_ulid] = StaleLease("unknown_lease")
            continue
        try:
            with uow.undo_if_refused(locked[lease_ulid]):
                results[lease_ulid] = decide(locked[lease_ulid], message)
        except LifecycleError as refusal:
            results[lease_ulid] = refusal
    return results


def _owners(messages: Messages[M]) -> dict[str, Worker]:
    return {lease_ulid: message.worker for lease_ulid, message in messages.items()}
