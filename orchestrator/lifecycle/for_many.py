"""What a worker says of many jobs in one call: one transaction, and as many statements for a hundred jobs as for one.

Each job is judged by the same rules as alone. A refusal is a value among the answers, and nothing of it remains."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar

from leases.errors import StaleLease
from leases.fencing import Holding, lock_holdings
from orchestrator.lifecycle.by_worker import Beat, Renewed, hear, keep_acknowledged, prolong
from orchestrator.lifecycle.finals import Failure, Success, give_up, runs_in_use, succeed, was_told
from orchestrator.lifecycle.transaction import verb, written
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from workers.models import Worker

W = TypeVar("W")
R = TypeVar("R")
Words = Mapping[str, W]  # by lease id
Answers = dict[str, R | LifecycleError]  # likewise


@verb
def acknowledge_many(
    words: Words[None], *, worker: Worker, session: str | None = None, now: datetime | None = None
) -> Answers[Job]:
    """As `acknowledge`, for each of these leases."""

    def say(holding: Holding, _: None) -> Job:
        hear(holding, worker, session)
        return keep_acknowledged(holding)

    return _each(words, worker, now, say)


@verb
def renew_many(
    words: Words[Beat], *, worker: Worker, session: str | None = None, now: datetime | None = None
) -> Answers[Renewed]:
    """As `renew`, for each of these leases."""

    def say(holding: Holding, beat: Beat) -> Renewed:
        hear(holding, worker, session)
        return prolong(holding, worker, beat)

    return _each(words, worker, now, say)


@verb
def complete_many(words: Words[Success], *, worker: Worker, now: datetime | None = None) -> Answers[Job]:
    """As `complete`, for each of these leases."""
    in_use: set[str] | None = None

    def say(holding: Holding, word: Success) -> Job:
        nonlocal in_use
        if was_told(holding, word.digest):
            return holding.job
        in_use = runs_in_use(words.values()) if in_use is None else in_use  # asked for under the locks
        return succeed(holding, worker, word, in_use)

    return _each(words, worker, now, say)


@verb
def fail_many(words: Words[Failure], *, worker: Worker, now: datetime | None = None) -> Answers[Job]:
    """As `fail`, for each of these leases."""

    def say(holding: Holding, word: Failure) -> Job:
        return holding.job if was_told(holding, word.digest) else give_up(holding, worker, word)

    return _each(words, worker, now, say, whole=True)  # a retry asks for the same again


def _each(
    words: Words[W], worker: Worker, now: datetime | None, say: Callable[[Holding, W], R], *, whole: bool = False
) -> Answers[R]:
    holdings = lock_holdings(lease_ulids=words.keys(), worker=worker, now=now, whole=whole)
    return {name: _answer(holdings.get(name), word, say) for name, word in words.items()}


def _answer(holding: Holding | None, word: W, say: Callable[[Holding, W], R]) -> R | LifecycleError:
    if holding is None:
        return StaleLease("unknown_lease")
    try:
        with written().unless_refused(holding):
            return say(holding, word)
    except LifecycleError as refusal:
        return refusal
