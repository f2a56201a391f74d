"""What a worker says of many jobs in one call: one transaction, and as many statements for a hundred jobs as for one.

Each job is judged by the same rules as alone. A refusal is a value among the answers, and nothing of it remains."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar

from leases.errors import StaleLease
from leases.fencing import LockedLease, lock_leases
from orchestrator.services.finish import (
    CompleteMessage,
    FailMessage,
    apply_failure,
    apply_success,
    is_duplicate,
    runs_in_use,
)
from orchestrator.services.heartbeat import (
    HeartbeatResult,
    HeartbeatUpdate,
    keep_acknowledged,
    renew_lease,
    validate_and_acknowledge,
)
from orchestrator.services.unit_of_work.operation import current_unit_of_work, operation
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from workers.models import Worker

W = TypeVar("W")
R = TypeVar("R")
Messages = Mapping[str, W]  # by lease id
Results = dict[str, R | LifecycleError]  # likewise


@operation
def acknowledge_many(
    words: Messages[None], *, worker: Worker, session: str | None = None, now: datetime | None = None
) -> Results[Job]:
    """As `acknowledge`, for each of these leases."""

    def say(holding: LockedLease, _: None) -> Job:
        validate_and_acknowledge(holding, worker, session)
        return keep_acknowledged(holding)

    return _apply_each(words, worker, now, say)


@operation
def renew_many(
    words: Messages[HeartbeatUpdate], *, worker: Worker, session: str | None = None, now: datetime | None = None
) -> Results[HeartbeatResult]:
    """As `renew`, for each of these leases."""

    def say(holding: LockedLease, beat: HeartbeatUpdate) -> HeartbeatResult:
        validate_and_acknowledge(holding, worker, session)
        return renew_lease(holding, worker, beat)

    return _apply_each(words, worker, now, say)


@operation
def complete_many(words: Messages[CompleteMessage], *, worker: Worker, now: datetime | None = None) -> Results[Job]:
    """As `complete`, for each of these leases."""
    in_use: set[str] | None = None

    def say(holding: LockedLease, word: CompleteMessage) -> Job:
        nonlocal in_use
        if is_duplicate(holding, word.digest):
            return holding.job
        in_use = runs_in_use(words.values()) if in_use is None else in_use  # asked for under the locks
        return apply_success(holding, worker, word, in_use)

    return _apply_each(words, worker, now, say)


@operation
def fail_many(words: Messages[FailMessage], *, worker: Worker, now: datetime | None = None) -> Results[Job]:
    """As `fail`, for each of these leases."""

    def say(holding: LockedLease, word: FailMessage) -> Job:
        return holding.job if is_duplicate(holding, word.digest) else apply_failure(holding, worker, word)

    return _apply_each(words, worker, now, say, whole=True)  # a retry asks for the same again


def _apply_each(
    words: Messages[W], worker: Worker, now: datetime | None, say: Callable[[LockedLease, W], R], *, whole: bool = False
) -> Results[R]:
    holdings = lock_leases(lease_ulids=words.keys(), worker=worker, now=now, whole=whole)
    return {name: _answer(holdings.get(name), word, say) for name, word in words.items()}


def _answer(holding: LockedLease | None, word: W, say: Callable[[LockedLease, W], R]) -> R | LifecycleError:
    if holding is None:
        return StaleLease("unknown_lease")
    try:
        with current_unit_of_work().unless_refused(holding):
            return say(holding, word)
    except LifecycleError as refusal:
        return refusal
