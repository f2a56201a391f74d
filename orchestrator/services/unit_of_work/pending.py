"""What a verb has decided, kept until it ends: then all of it is written by one statement, however much there is."""

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import DatabaseError, connection, transaction
from django.db.models import Model

from leases.fencing import LockedLease
from leases.models import Lease
from leases.scheduling.lanes import LaneUpdates
from orchestrator.services.unit_of_work.bulk_write import Insert, Update, store
from runtime_jobs.errors import LifecycleError
from runtime_jobs.events import EventRow
from runtime_jobs.models import Artifact, EndedDependency, FailureExplanation, Job, JobEvent
from runtime_jobs.states import JobState

log = logging.getLogger(__name__)

# What verbs change. A store names just these: an UPDATE that so much as names a column of a unique key takes the
# strongest row lock (because of the trigger that guards final states), and then waits for whoever writes an event.
UPDATED_FIELDS = (
    *("state", "phase_at", "started_at", "executing_at", "finished_at", "updated_at", "event_seq", "event_head"),
    *("progress", "log_bytes", "requeue_count", "release_count", "excluded_workers", "cancel_requested_at"),
    *("cancel_reason", "cancel_actor", "cancel_message", "cancel_deadline_at", "failure_reason", "failure_class"),
    *("failure_message", "exit_code", "result"),
)
OF_RUN = ("ingest_run_id",)
OF_PLACE = ("priority", "lane_id")
STORED_OF_LEASE = (
    *("state", "acknowledged_at", "last_heartbeat_at", "expires_at", "completed_at", "ended_reason", "final_digest"),
)


@dataclass
class PendingChanges(LaneUpdates):
    """What the lanes are told, and what is to be done after the commit. `ended`: jobs that others wait for. `updated`:
    ids of jobs that ended or whose log grew, for those who follow them."""

    ended: list[EndedDependency] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)


class UnitOfWork:
    """The rows that one verb has made or changed."""

    def __init__(self, recounted: frozenset[str] = frozenset()) -> None:
        self.ending = PendingChanges()
        self.recounted = recounted  # organizations whose quota was recounted for this call
        self.lanes: dict[tuple[str, ...], int] = {}  # that were looked up
        self.events: list[EventRow] = []
        self.beside: list[Model] = []  # new rows of other tables
        self.artifacts: list[Artifact] = []
        self.guesses: list[FailureExplanation] = []
        self._new: dict[str, Job | Lease] = {}
        self._changed: dict[str, Job | Lease] = {}
        self._relocated: set[str] = set()

    @property
    def _lists(self) -> list[list[Any]]:
        ending = self.ending
        decided: list[list[Any]] = [self.events, self.beside, self.artifacts, self.guesses]
        return [*decided, ending.entered, ending.freed, ending.ended, ending.kept]

    def add(self, row: Job | Lease) -> None:
        self._new[_name(row)] = row

    def change(self, row: Job | Lease) -> None:
        if _name(row) not in self._new:
            self._changed[_name(row)] = row

    def relocate(self, job: Job) -> None:
        """Write the job's priority and lane, too, which other changes leave alone."""
        self._relocated.add(_name(job))

    @contextmanager
    def unless_refused(self, holding: LockedLease) -> Iterator[None]:
        """Take back whatever was decided of this job inside, if it ends in a refusal.

        Only what was decided can be taken back here: a savepoint for each job would cost two statements. A refusal
        after a statement that wrote at once is therefore an error, which undoes the whole transaction."""
        written_at_once: list[str] = []
        with self._restored(holding.job, holding.lease):
            try:
                with connection.execute_wrapper(_noting_writes(written_at_once)):
                    yield
            except LifecycleError as refusal:
                if written_at_once:
                    raise RuntimeError(f"Refused after it was written: {written_at_once[0][:80]}") from refusal
                raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Take back everything of the block if it ends in a refusal: what was decided, and what was written at once."""
        with self._restored(), transaction.atomic():
            yield

    @contextmanager
    def _restored(self, *changing: Job | Lease) -> Iterator[None]:
        """Restore what was decided, and these rows, as they were before a block that raises LifecycleError."""
        rows = [(row, dict(vars(row))) for row in changing]
        lists = [(kept, list(kept)) for kept in self._lists]
        new, changed, relocated = dict(self._new), dict(self._changed), set(self._relocated)
        lanes = dict(self.lanes)
        arrivals = {name: replace(one) for name, one in self.ending.arrivals.items()}
        try:
            yield
        except LifecycleError:
            for row, before in rows:
                vars(row).clear()
                vars(row).update(before)
            for kept, before_it in lists:
                kept[:] = before_it
            self._new, self._changed, self._relocated = new, changed, relocated
            self.lanes = lanes  # one that was made inside is gone
            self.ending.arrivals = arrivals
            raise

    def flush(self) -> None:
        """Write it. A verb that wants to read what it has decided calls this, else it happens at its end."""
        new, changed, events = list(self._new.values()), list(self._changed.values()), list(self.events)
        self._new.clear()
        self._changed.clear()
        self.events.clear()
        jobs, leases = _apart(changed)
        columns: tuple[str, ...] = UPDATED_FIELDS
        if any(job.ingest_run_id is not None for job in jobs):
            columns += OF_RUN
        if not self._relocated.isdisjoint(map(_name, jobs)):
            columns += OF_PLACE
        self._relocated.clear()
        self.ending.updated += [job.job_ulid for job in jobs if job.is_final]
        added, granted = _apart(new)
        store(
            [
                Insert(Job, added, "job_ulid"),
                Insert(Lease, granted, "lease_ulid"),
                Insert(JobEvent, events, "event_ulid"),
            ],
            [Update(Job, jobs, columns), Update(Lease, leases, STORED_OF_LEASE)],
        )
        for job in added:
            if job.lane_id is None:
                continue
            if job.state == JobState.QUEUED:
                self.ending.entered.append((job.pk, job.lane_id, job.created_at))
            elif job.state == JobState.BLOCKED:
                self.ending.kept.append(job.lane_id)
        self._flush_beside()

    def _flush_beside(self) -> None:
        self.beside += [row for row in self.ending.ended if row.pk is None]
        for model, rows in itertools.groupby(sorted(self.beside, key=_kind), key=type):
            model.objects.bulk_create(rows)  # type: ignore[attr-defined] # every model has its manager
        self.beside.clear()
        if self.artifacts:
            Artifact.objects.bulk_create(self.artifacts, ignore_conflicts=True)  # each address once
            self.artifacts.clear()
        guesses, self.guesses = self.guesses, []
        if not guesses:
            return
        try:
            with transaction.atomic():
                FailureExplanation.objects.bulk_create(guesses)
        except DatabaseError:  # a guess that cannot be stored is no reason to lose a result
            log.exception("no explanation of %s", ", ".join(guess.job_id for guess in guesses))


def _noting_writes(found: list[str]) -> Callable[..., Any]:
    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip()[:6].upper() in {"INSERT", "UPDATE", "DELETE"}:
            found.append(sql)
        return execute(sql, params, many, context)

    return note


def _name(row: Job | Lease) -> str:
    return row.job_ulid if isinstance(row, Job) else row.lease_ulid


def _apart(rows: list[Job | Lease]) -> tuple[list[Job], list[Lease]]:
    jobs = [row for row in rows if isinstance(row, Job)]
    return jobs, [row for row in rows if isinstance(row, Lease)]


def _kind(row: Model) -> str:
    return type(row).__name__
