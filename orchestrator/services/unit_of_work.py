"""One operation is one transaction: `@operation` opens it, retries it, and writes what its `UnitOfWork` collected.

The order is the same for every operation:

1. `@operation` begins a transaction and calls the function with a new `UnitOfWork` as the first argument.
2. The function locks rows, decides, and collects rows, events and lane updates in the unit of work.
3. `UnitOfWork.write` stores all of it: one statement for jobs, leases and events, then the lanes and NOTIFY.
4. The transaction commits.
5. `UnitOfWork.run_after_commit` calls what the function named by `UnitOfWork.after_commit`.
"""

import functools
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.models import Model

from leases.fencing import LockedLease
from leases.models import Lease
from leases.scheduling import submit_quotas
from leases.scheduling.lanes import LaneKey, LaneUpdates
from leases.scheduling.submit_quotas import QuotaChanged
from orchestrator.services.bulk_write import Insert, Update, write_rows
from runtime_jobs.errors import LifecycleError, QuotaContended
from runtime_jobs.events import EventRow
from runtime_jobs.models import Artifact, FailureExplanation, Job, JobEvent
from runtime_jobs.states import JobState

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_ATTEMPTS = 4
MAX_PAUSE_SECONDS = 0.05  # before a retry, times the number of the attempt
_RETRYABLE_SQLSTATES = frozenset({"40P01", "40001"})  # deadlock, serialization failure

# The columns that operations change. An UPDATE that names a column of a unique key takes the strongest row lock,
# because a trigger guards final states. It would wait for every transaction that inserts an event of the job.
UPDATED_JOB_FIELDS = (
    *("state", "phase_at", "started_at", "executing_at", "finished_at", "updated_at", "event_seq", "event_head"),
    *("progress", "log_bytes", "requeue_count", "release_count", "excluded_workers", "cancel_requested_at"),
    *("cancel_reason", "cancel_actor", "cancel_message", "cancel_deadline_at", "failure_reason", "failure_class"),
    *("failure_message", "exit_code", "result"),
)
RUN_FIELDS = ("ingest_run_id",)  # only if a job got a run
LANE_FIELDS = ("priority", "lane_id")  # only if a job changed its lane
UPDATED_LEASE_FIELDS = (
    *("state", "acknowledged_at", "last_heartbeat_at", "expires_at", "completed_at", "ended_reason", "final_digest"),
)


class UnitOfWork:
    """Collects the changes of one operation and writes them before the commit.

    Attributes:
        lane_updates: Changes of lanes, slots and quotas. They are written last, because they lock rows that many
            operations share.
        recounted: Slugs of organizations whose submit quota was recounted for this call.
        lane_ids: Lanes that were looked up already.
        events: New events, in order.
        extra_rows: New rows of other tables.
        artifacts: New artifacts. An address that the job has already is skipped.
        diagnoses: New explanations of failures. One that cannot be stored is logged and dropped.
    """

    def __init__(self, recounted: frozenset[str] = frozenset()) -> None:
        """Begin without changes."""
        self.lane_updates = LaneUpdates()
        self.recounted = recounted
        self.lane_ids: dict[LaneKey, int] = {}
        self.events: list[EventRow] = []
        self.extra_rows: list[Model] = []
        self.artifacts: list[Artifact] = []
        self.diagnoses: list[FailureExplanation] = []
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
        after an immediate write is a programming error.

        Raises:
            RuntimeError: The block wrote at once and then refused. The whole transaction is rolled back.
        """
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
    def savepoint(self) -> Iterator[None]:
        """Undo collected changes and immediate writes if the block raises LifecycleError."""
        with self._restored(), transaction.atomic():
            yield

    @contextmanager
    def _restored(self, *changing: Job | Lease) -> Iterator[None]:
        rows = [(row, dict(vars(row))) for row in changing]
        lists = [(collected, list(collected)) for collected in self._lists]
        new, changed, relocated = dict(self._new), dict(self._changed), set(self._relocated)
        lane_ids = dict(self.lane_ids)
        arrivals = {name: replace(arrived) for name, arrived in self.lane_updates.arrivals.items()}
        after_commit = {act: list(items) for act, items in self._after_commit.items()}
        try:
            yield
        except LifecycleError:
            for row, values in rows:
                vars(row).clear()
                vars(row).update(values)
            for collected, before in lists:
                collected[:] = before
            self._new, self._changed, self._relocated = new, changed, relocated
            self.lane_ids, self.lane_updates.arrivals, self._after_commit = lane_ids, arrivals, after_commit
            raise

    @property
    def _lists(self) -> list[list[Any]]:
        lanes = self.lane_updates
        return [self.events, self.extra_rows, self.artifacts, self.diagnoses, lanes.entered, lanes.freed, lanes.kept]

    def write(self) -> None:
        """Write everything: rows first, then the lanes as the last statement of the transaction."""
        self.flush()
        self.lane_updates.write()

    def flush(self) -> None:
        """Write the collected rows now. An operation calls this only if it reads its own changes afterwards."""
        new, changed, events = list(self._new.values()), list(self._changed.values()), list(self.events)
        self._new.clear()
        self._changed.clear()
        self.events.clear()
        jobs, leases = _partition(changed)
        columns: tuple[str, ...] = UPDATED_JOB_FIELDS
        if any(job.ingest_run_id is not None for job in jobs):
            columns += RUN_FIELDS
        if not self._relocated.isdisjoint(map(_key, jobs)):
            columns += LANE_FIELDS
        self._relocated.clear()
        new_jobs, new_leases = _partition(new)
        write_rows(
            [
                Insert(Job, new_jobs, "job_ulid"),
                Insert(Lease, new_leases, "lease_ulid"),
                Insert(JobEvent, events, "event_ulid"),
            ],
            [Update(Job, jobs, columns), Update(Lease, leases, UPDATED_LEASE_FIELDS)],
        )
        for job in new_jobs:
            if job.lane_id is None:
                continue
            if job.state == JobState.QUEUED:
                self.lane_updates.entered.append((job.pk, job.lane_id, job.created_at))
            elif job.state == JobState.BLOCKED:
                self.lane_updates.kept.append(job.lane_id)
        self._flush_other_tables()

    def _flush_other_tables(self) -> None:
        for model, rows in itertools.groupby(sorted(self.extra_rows, key=_model_name), key=type):
            model.objects.bulk_create(rows)  # type: ignore[attr-defined] # every model has its manager
        self.extra_rows.clear()
        if self.artifacts:
            Artifact.objects.bulk_create(self.artifacts, ignore_conflicts=True)  # each address once
            self.artifacts.clear()
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


def _key(row: Job | Lease) -> str:
    return row.job_ulid if isinstance(row, Job) else row.lease_ulid


def _partition(rows: list[Job | Lease]) -> tuple[list[Job], list[Lease]]:
    jobs = [row for row in rows if isinstance(row, Job)]
    return jobs, [row for row in rows if isinstance(row, Lease)]


def _model_name(row: Model) -> str:
    return type(row).__name__


@overload
def operation(function: Callable[Concatenate[UnitOfWork, P], R], /) -> Callable[P, R]: ...
@overload
def operation(
    *, retry_unique_violation: str = ...
) -> Callable[[Callable[Concatenate[UnitOfWork, P], R]], Callable[P, R]]: ...
def operation(
    function: Callable[Concatenate[UnitOfWork, P], R] | None = None,
    /,
    *,
    retry_unique_violation: str = "",
) -> Callable[P, R] | Callable[[Callable[Concatenate[UnitOfWork, P], R]], Callable[P, R]]:
    """Run a function in a transaction of its own, with a `UnitOfWork` as its first argument.

    The transaction is durable: an operation never runs inside another one. Nothing remains of an attempt that failed,
    so it is repeated up to `MAX_ATTEMPTS` times after a deadlock, a serialization failure or a `QuotaChanged`. The
    quota is recounted first.

    Args:
        function: The function to decorate. Callers leave out its first parameter.
        retry_unique_violation: Also repeat if a unique constraint whose name contains this text is violated. The next
            attempt sees the row of the other transaction and refuses one job instead of the whole call.

    Raises:
        QuotaContended: The quota changed during every attempt.
    """

    def decorate(function: Callable[Concatenate[UnitOfWork, P], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
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
                        message = (
                            f"The submit quota of {error.org_slug} changed during the request. Repeat the request."
                        )
                        raise QuotaContended(message, retry_after=1) from error
                    submit_quotas.recount(error.org_slug)
                    recounted |= {error.org_slug}
                    continue
                except (OperationalError, IntegrityError) as error:
                    if is_last or not is_retryable(error, retry_unique_violation):
                        raise
                    time.sleep(random.uniform(0, MAX_PAUSE_SECONDS * attempt))  # noqa: S311 jitter, not a secret
                    continue
                uow.run_after_commit()
                return result
            raise AssertionError("the last attempt returns or raises")

        return run

    return decorate if function is None else decorate(function)


def is_retryable(error: Exception, unique_constraint: str = "") -> bool:
    """Return whether the same transaction may succeed if it is repeated.

    Args:
        error: A deadlock or a serialization failure, or a violation of the constraint.
        unique_constraint: A part of the name of a unique constraint.
    """
    if isinstance(error, IntegrityError):
        violated = getattr(getattr(error.__cause__, "diag", None), "constraint_name", None) or ""
        return bool(unique_constraint) and unique_constraint in violated
    return getattr(error.__cause__, "sqlstate", None) in _RETRYABLE_SQLSTATES
