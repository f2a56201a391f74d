"""One verb, one transaction; a deadlock or a serialization failure is tried again, because nothing of it remained."""

import functools
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from django.db import IntegrityError, OperationalError, transaction

from leases.scheduling import submit_quotas
from leases.scheduling.submit_quotas import QuotaChanged
from orchestrator.services.unit_of_work.pending import PendingChanges, UnitOfWork
from runtime_jobs.errors import QuotaContended

P = ParamSpec("P")
R = TypeVar("R")

TRIES = 4
_TRY_AGAIN = frozenset({"40P01", "40001"})
# Another transaction named the same run of an external ingest meanwhile. The next try sees that and refuses one job.
_TAKEN_MEANWHILE = "ingest_run_id"

_written: ContextVar[UnitOfWork] = ContextVar("written")
_after: list[Callable[[PendingChanges], None]] = []


def on_operation_committed(act: Callable[[PendingChanges], None]) -> Callable[[PendingChanges], None]:
    """Call it after every verb's commit, with what that verb has left. It must not raise: the verb has happened."""
    _after.append(act)
    return act


def current_unit_of_work() -> UnitOfWork:
    """What this verb has decided, and what is written when it ends."""
    return _written.get()


def savepoint() -> AbstractContextManager[None]:
    """Undo a block of this operation that ends in a refusal, deferred and immediate writes alike."""
    return current_unit_of_work().savepoint()


def lane_updates() -> PendingChanges:
    """What this verb will tell the lanes as its last statement: their rows are locked for as short as can be."""
    return current_unit_of_work().ending


def operation(function: Callable[P, R]) -> Callable[P, R]:
    """Run in a transaction of its own (durable: never inside another) and repeat it when PostgreSQL gave it up, when
    it is a claim that could not tell whether there is nothing, or when a submit quota has to be recounted first."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        recounted: frozenset[str] = frozenset()
        for tried in range(1, TRIES + 1):
            try:
                with transaction.atomic(durable=True):
                    result, done = _execute(function, args, kwargs, recounted)
                if not done.again or tried == TRIES:
                    break
            except QuotaChanged as changed:
                if tried == TRIES:
                    raise QuotaContended(
                        "Other requests took the room that was left. Try again.", retry_after=1
                    ) from changed
                submit_quotas.recount(changed.org_slug)
                recounted |= {changed.org_slug}
            except (OperationalError, IntegrityError) as error:
                if not _is_worth_another_try(error) or tried == TRIES:
                    raise
                time.sleep(random.uniform(0, 0.05 * tried))  # noqa: S311 jitter, not a secret
        for act in _after:
            act(done)
        return result

    return run


def _is_worth_another_try(error: Exception) -> bool:
    if isinstance(error, IntegrityError):
        return _TAKEN_MEANWHILE in (getattr(getattr(error.__cause__, "diag", None), "constraint_name", None) or "")
    return getattr(error.__cause__, "sqlstate", None) in _TRY_AGAIN


def _execute(
    function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], recounted: frozenset[str]
) -> tuple[R, PendingChanges]:
    before = _written.set(UnitOfWork(recounted))
    try:
        result = function(*args, **kwargs)
        current_unit_of_work().flush()
        lane_updates().tell()
        return result, lane_updates()
    finally:
        _written.reset(before)
