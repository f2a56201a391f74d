"""One operation is one transaction: `@operation` opens it, retries it, and writes what its `UnitOfWork` collected.

The order is the same for every operation:

1. `@operation` begins a transaction and calls the function with a new `UnitOfWork` as the first argument.
2. The function locks rows, decides, and collects rows, events and lane updates in the unit of work.
3. `UnitOfWork.write` stores all of it: jobs, leases and events, then the lanes, by one statement.
4. The transaction commits.
5. `UnitOfWork.run_after_commit` calls what the function named by `UnitOfWork.after_commit`.

With `optimistic=True` an attempt without a transaction comes first: the function reads without locks, and the statement
of step 3 compares the versions of the rows under their locks, and commits by itself. So the operation costs two
statements instead of six. If a version differs, or the operation needs a transaction, steps 1 to 5 follow from the
beginning. The reasons why both are equal are in docs/adr/0053.
"""

import functools
import itertools
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.models import Model

from leases.fencing import LockedLease, RowVersions
from leases.models import Lease
from leases.scheduling import submit_quotas
from leases.scheduling.claims import AttachedClaim
from leases.scheduling.lanes import LaneKey, LaneUpdates
from leases.scheduling.submit_quotas import Arrivals, QuotaChanged
from orchestrator.core import work_signals
from orchestrator.core.bulk_write import Changes, write_and_claim, write_changes
from runtime_jobs.db_errors import sqlstate_of
from runtime_jobs.errors import LifecycleError, QuotaContended
from runtime_jobs.events import EventRow
from runtime_jobs.models import Artifact, FailureExplanation, IdempotencyKey, Job, UnsentRun
from runtime_jobs.states import JobState
from runtime_jobs.written_columns import is_written_with_changes

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_ATTEMPTS = 4
MAX_PAUSE_SECONDS = 0.05  # before a retry, times the number of the attempt
_RETRYABLE_SQLSTATES = frozenset({"40P01", "40001"})  # deadlock, serialization failure


class NeedsTransaction(Exception):
    """An optimistic attempt cannot decide or store the operation. Nothing was written."""


class UnitOfWork:
    """Collects the changes of one operation and writes them before the commit.

    Attributes:
        lane_updates: Changes of lanes, slots and quotas. They are written last, because they lock rows that many
            operations share.
        recounted: Slugs of organizations whose submit quota was recounted for this call.
        lane_ids: Lanes that were looked up already.
        events: New events, in order.
        extra_rows: New rows of other tables. Those of models that are `WRITTEN_WITH_CHANGES` need no transaction.
        artifacts: New artifacts. An address that the job has already is skipped.
        unsent_runs: New runs whose upload failed. A job that has one already keeps it.
        idempotency_keys: Keys to bind with an optimistic write; see `IdempotentRequest.bind_with`.
        diagnoses: New explanations of failures. One that cannot be stored is logged and dropped.
        versions: The versions of the rows that an optimistic attempt has read. None in a transaction.
        next_claim: A claim that the last statement makes after the changes, or None.
    """

    def __init__(self, recounted: frozenset[str] = frozenset(), versions: RowVersions | None = None) -> None:
        """Begin without changes."""
        self.versions = versions
        self.next_claim: AttachedClaim | None = None
        self.lane_updates = LaneUpdates()
        self.recounted = recounted
        self.lane_ids: dict[LaneKey, int] = {}
        self.events: list[EventRow] = []
        self.extra_rows: list[Model] = []
        self.artifacts: list[Artifact] = []
        self.unsent_runs: list[UnsentRun] = []
        self.diagnoses: list[FailureExplanation] = []
        self.idempotency_keys: list[IdempotencyKey] = []
        self._new: dict[str, Job | Lease] = {}
        self._changed: dict[str, Job | Lease] = {}
        self._relocated: set[str] = set()
        self._after_commit: dict[Callable[[list[Any]], object], list[Any]] = {}

    def add(self, row: Job | Lease) -> None:
        """Insert this row when the unit of work is written."""
        self._new[_key(row)] = row

    def change(self, row: Job | Lease) -> None:
        """Update this row when the unit of work is written; once, however often this is called."""
        if _key(row) not in self._new:
            self._changed[_key(row)] = row

    def relocate(self, job: Job) -> None:
        """Update also the priority and the lane of a changed job. Other changes do not name these columns."""
        self._relocated.add(_key(job))

    @property
    def is_optimistic(self) -> bool:
        """Whether there is no transaction and no lock: see `operation`."""
        return self.versions is not None

    def require_transaction(self) -> None:
        """End an optimistic attempt. Call this before work that needs locks, a savepoint or an immediate write.

        Raises:
            NeedsTransaction: The attempt is optimistic. `operation` repeats the function in a transaction.
        """
        if self.versions is not None:
            raise NeedsTransaction

    def after_commit(self, act: Callable[[list[T]], object], item: T) -> None:
        """Call `act` once after the commit, with all items that this operation registered for it.

        Args:
            act: A function that never raises: the operation has already happened.
            item: One of the things to act on.
        """
        self._after_commit.setdefault(act, []).append(item)

    def take_after_commit(self, act: Callable[[list[T]], object]) -> list[T]:
        """Remove and return the items registered for `act`, for a caller that acts on them itself."""
        return self._after_commit.pop(act, [])

    def run_after_commit(self) -> None:
        """Call what was registered by `after_commit`."""
        for act, items in self._after_commit.items():
            act(items)

    @contextmanager
    def undo_if_refused(self, locked: LockedLease) -> Iterator[None]:
        """Undo the collected changes of one job if the block raises LifecycleError.

        A savepoint for each job would cost two statements. So only collected changes can be undone here, and a refusal
        after an immediate write is a programming error. An optimistic attempt undoes nothing: it ends with the first
        refusal, which is then confirmed in a transaction.

        Raises:
            RuntimeError: The block wrote at once and then refused. The whole transaction is rolled back.
            NeedsTransaction: The attempt is optimistic, and the block refused.
        """
        if self.is_optimistic:
            try:
                yield
            except LifecycleError as refusal:
                raise NeedsTransaction from refusal
            return
        immediate_writes: list[str] = []
        with self._restored(locked.job, locked.lease):
            try:
                with connection.execute_wrapper(_recording_writes(immediate_writes)):
                    yield
            except LifecycleError as refusal:
                if immediate_writes:
                    raise RuntimeError(f"Refused after it was written: {immediate_writes[0][:80]}") from refusal
                raise

    @contextmanager
    def undo_if_undecided(self, locked: LockedLease) -> Iterator[None]:
        """Undo the collected changes of one job if an optimistic attempt cannot decide or store them.

        So one job of many does not repeat the whole call in a transaction. The caller decides that job by another one.

        Raises:
            NeedsTransaction: The block refused, which is to be confirmed, or it needs a transaction.
        """
        with self._truncated(locked.job, locked.lease):
            try:
                yield
            except LifecycleError as refusal:
                raise NeedsTransaction from refusal

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo collected changes and immediate writes if the block raises LifecycleError."""
        self.require_transaction()
        with self._restored(), transaction.atomic():
            yield

    @contextmanager
    def _restored(self, *changing: Job | Lease) -> Iterator[None]:
        """Restore all that this unit has collected, and these rows, if the block cannot be completed."""
        rows = [(row, dict(vars(row))) for row in changing]
        collected = {name: _copied(value) for name, value in vars(self).items()}
        try:
            yield
        except (LifecycleError, NeedsTransaction):
            _put_back(rows)
            vars(self).update(collected)
            raise

    @contextmanager
    def _truncated(self, *changing: Job | Lease) -> Iterator[None]:
        """Do as `_restored` at a cost that does not grow with what was collected before, for one of many entries.

        Copies for each entry were a quarter of the Python of 64 heartbeats. Here what the block has appended is
        dropped. That is enough in an optimistic attempt, where each row belongs to one entry.
        """
        rows = [(row, dict(vars(row))) for row in changing]
        lanes = self.lane_updates
        collections = [*vars(self).values(), *vars(lanes).values(), *self._after_commit.values()]
        sizes = [(found, len(found)) for found in collections if isinstance(found, list | dict)]
        relocated, arrivals, next_claim = set(self._relocated), _copied(lanes.arrivals), self.next_claim
        try:
            yield
        except (LifecycleError, NeedsTransaction):
            _put_back(rows)
            for collection, size in sizes:
                while len(collection) > size:
                    collection.popitem() if isinstance(collection, dict) else collection.pop()
            self._relocated, lanes.arrivals, self.next_claim = relocated, arrivals, next_claim
            raise

    def write(self) -> None:
        """Write everything: rows first, then the lanes as the last statement of the transaction.

        Raises:
            NeedsTransaction: The attempt is optimistic, and a row has changed since it was read, the idempotency key
                is bound already, or the operation has changes that one statement cannot store.
        """
        lanes = self.lane_updates
        if self._has_other_rows:
            self.flush()
        changes = self._take_changes()
        if self.next_claim is not None:
            is_written = write_and_claim(changes, self.next_claim, lanes=lanes, versions=self.versions)
        elif changes or lanes or self.idempotency_keys:
            is_written = write_changes(changes, lanes=lanes, versions=self.versions, keys=self.idempotency_keys)
        else:
            is_written = True
        if not is_written:
            raise NeedsTransaction
        for pool in changes.pools:
            self.after_commit(work_signals.announce, pool)

    def flush(self) -> None:
        """Write the collected rows now. An operation calls this only if it reads its own changes afterwards."""
        self.require_transaction()
        changes = self._take_changes()
        if changes:
            write_changes(changes)
        for job in changes.new_jobs:
            if job.lane_id is None:
                continue
            if job.state == JobState.QUEUED:
                self.lane_updates.entered.append((job.pk, job.lane_id, job.created_at))
            elif job.state == JobState.BLOCKED:
                self.lane_updates.kept.append(job.lane_id)
        self._flush_other_tables()

    @property
    def _has_other_rows(self) -> bool:
        has_rows = not all(is_written_with_changes(type(row)) for row in self.extra_rows)
        return bool(has_rows or self.artifacts or self.unsent_runs or self.diagnoses)

    def _take_changes(self) -> Changes:
        """Remove and return the collected rows and events."""
        jobs, leases = _partition(self._changed.values())
        new_jobs, new_leases = _partition(self._new.values())
        relocated = {job.pk for job in jobs if _key(job) in self._relocated} if self._relocated else set()
        rows = [row for row in self.extra_rows if is_written_with_changes(type(row))]
        self.extra_rows = [row for row in self.extra_rows if not is_written_with_changes(type(row))]
        changes = Changes(new_jobs, new_leases, list(self.events), jobs, leases, relocated, rows)
        for job in new_jobs:
            if job.state == JobState.QUEUED and job.lane_id is not None:
                self.after_commit(work_signals.wake, job.pool)
        self._new.clear()
        self._changed.clear()
        self._relocated.clear()
        self.events.clear()
        return changes

    def _flush_other_tables(self) -> None:
        for model, rows in itertools.groupby(sorted(self.extra_rows, key=_model_name), key=type):
            model.objects.bulk_create(rows)  # type: ignore[attr-defined] # every model has its manager
        self.extra_rows.clear()
        if self.artifacts:
            Artifact.objects.bulk_create(self.artifacts, ignore_conflicts=True)  # each address once
            self.artifacts.clear()
        if self.unsent_runs:
            UnsentRun.objects.bulk_create(self.unsent_runs, ignore_conflicts=True)  # a resend fails with the same run
            self.unsent_runs.clear()
        diagnoses, self.diagnoses = self.diagnoses, []
        if not diagnoses:
            return
        try:
            with transaction.atomic():
                FailureExplanation.objects.bulk_create(diagnoses)
        except DatabaseError:  # a diagnosis that cannot be stored is no reason to lose a result
            log.exception("no explanation of %s", ", ".join(diagnosis.job_id for diagnosis in diagnoses))


def _recording_writes(found: list[str]) -> Callable[..., Any]:
    def record(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip()[:6].upper() in {"INSERT", "UPDATE", "DELETE"}:
            found.append(sql)
        return execute(sql, params, many, context)

    return record


def _put_back(rows: Sequence[tuple[Model, dict[str, Any]]]) -> None:
    """Give rows the values that they had."""
    for row, values in rows:
        vars(row).clear()
        vars(row).update(values)


def _copied(value: Any) -> Any:
    """Return a copy of a collection and of the collections in it. What they contain is shared."""
    if isinstance(value, list | set):
        return type(value)(value)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, LaneUpdates | Arrivals):
        return replace(value, **_copied(vars(value)))
    return value


def _key(row: Job | Lease) -> str:
    return row.job_ulid if isinstance(row, Job) else row.lease_ulid


def _partition(rows: Collection[Job | Lease]) -> tuple[list[Job], list[Lease]]:
    jobs = [row for row in rows if isinstance(row, Job)]
    return jobs, [row for row in rows if isinstance(row, Lease)]


def _model_name(row: Model) -> str:
    return type(row).__name__


@overload
def operation(function: Callable[Concatenate[UnitOfWork, P], R], /) -> Callable[P, R]: ...
@overload
def operation(
    *,
    optimistic: bool = ...,
    confirm_refusals: bool = ...,
    retry_unique_violation: str = ...,
) -> Callable[[Callable[Concatenate[UnitOfWork, P], R]], Callable[P, R]]: ...
def operation(
    function: Callable[Concatenate[UnitOfWork, P], R] | None = None,
    /,
    *,
    optimistic: bool = False,
    confirm_refusals: bool = True,
    retry_unique_violation: str = "",
) -> Callable[P, R] | Callable[[Callable[Concatenate[UnitOfWork, P], R]], Callable[P, R]]:
    """Run a function in a transaction of its own, with a `UnitOfWork` as its first argument.

    The transaction is durable: an operation never runs inside another one. Nothing remains of an attempt that failed,
    so it is repeated up to `MAX_ATTEMPTS` times after a deadlock, a serialization failure or a `QuotaChanged`. The
    quota is recounted first.

    Args:
        function: The function to decorate. Callers leave out its first parameter.
        optimistic: Attempt the function without a transaction first. It must pass `uow.versions` to what reads rows,
            and call `uow.require_transaction` before anything but reading and collecting.
        confirm_refusals: Repeat a function in a transaction that refused in the optimistic attempt. So a refusal does
            not depend on a change that another process is about to commit.
        retry_unique_violation: Also repeat if a unique constraint whose name contains this text is violated. The next
            attempt sees the row of the other transaction and refuses one job instead of the whole call.

    Raises:
        QuotaContended: The quota changed during every attempt.
    """

    def decorate(function: Callable[Concatenate[UnitOfWork, P], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if optimistic:
                try:
                    return _attempt_optimistically(function, *args, **kwargs)
                except LifecycleError:
                    if not confirm_refusals:
                        raise
                except (NeedsTransaction, QuotaChanged, IntegrityError):
                    pass  # if the cause remains, it is met again below
                except OperationalError as error:
                    if not is_retryable(error):
                        raise
            return _run_in_transaction(retry_unique_violation, function, *args, **kwargs)

        return run

    return decorate if function is None else decorate(function)


def _attempt_optimistically(
    function: Callable[Concatenate[UnitOfWork, P], R], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    uow = UnitOfWork(versions=RowVersions())
    result = function(uow, *args, **kwargs)
    # The statement commits by itself. Only tests call this within a transaction, which an error must not break.
    with transaction.atomic(durable=True) if connection.in_atomic_block else nullcontext():
        uow.write()
    uow.run_after_commit()
    return result


def _run_in_transaction(
    unique_constraint: str, function: Callable[Concatenate[UnitOfWork, P], R], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    recounted: frozenset[str] = frozenset()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        is_last = attempt == MAX_ATTEMPTS
        try:
            with transaction.atomic(durable=True):
                uow = UnitOfWork(recounted)
                result = function(uow, *args, **kwargs)
                uow.write()
        except QuotaChanged as error:
            if is_last:
                message = f"The submit quota of {error.org_slug} changed during the request. Repeat the request."
                raise QuotaContended(message, retry_after=1) from error
            submit_quotas.recount(error.org_slug)
            recounted |= {error.org_slug}
            continue
        except (OperationalError, IntegrityError) as error:
            if is_last or not is_retryable(error, unique_constraint):
                raise
            time.sleep(random.uniform(0, MAX_PAUSE_SECONDS * attempt))  # noqa: S311 jitter, not a secret
            continue
        uow.run_after_commit()
        return result
    raise AssertionError("the last attempt returns or raises")


def is_retryable(error: Exception, unique_constraint: str = "") -> bool:
    """Return whether the same transaction may succeed if it is repeated.

    Args:
        error: A deadlock or a serialization failure, or a violation of the constraint.
        unique_constraint: A part of the name of a unique constraint.
    """
    if isinstance(error, IntegrityError):
        violated = getattr(getattr(error.__cause__, "diag", None), "constraint_name", None) or ""
        return bool(unique_constraint) and unique_constraint in violated
    return sqlstate_of(error) in _RETRYABLE_SQLSTATES
