"""What a verb has decided, kept until it ends: then all of it is written by one statement, however much there is."""

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import Model

from leases.fencing import Holding
from leases.lanes import Ending
from leases.models import Lease
from orchestrator.lifecycle.storing import Change, New, store
from runtime_jobs.errors import LifecycleError
from runtime_jobs.events import NewEvent
from runtime_jobs.models import EndedDependency, FailureExplanation, Job, JobEvent
from runtime_jobs.states import JobState

log = logging.getLogger(__name__)

# What verbs change. A store names just these: an UPDATE that so much as names a column of a unique key takes the
# strongest row lock (because of the trigger that guards final states), and then waits for whoever writes an event.
STORED = (
    *("state", "phase_at", "started_at", "executing_at", "finished_at", "updated_at", "event_seq", "event_head"),
    *("progress", "log_bytes", "requeue_count", "release_count", "excluded_workers", "cancel_requested_at"),
    *("cancel_reason", "cancel_actor", "cancel_message", "cancel_deadline_at", "failure_reason", "failure_class"),
    *("failure_message", "exit_code", "result"),
)
WITH_RUN = (*STORED, "ingest_run_id")
STORED_OF_LEASE = (
    *("state", "acknowledged_at", "last_heartbeat_at", "expires_at", "completed_at", "ended_reason", "final_digest"),
)


@dataclass
class VerbEnding(Ending):
    """What the lanes are told, and what is to be done after the commit. `ended`: jobs that others wait for. `updated`:
    ids of jobs that ended or whose log grew, for those who follow them."""

    ended: list[EndedDependency] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)


class Written:
    """The rows that one verb has made or changed."""

    def __init__(self) -> None:
        self.ending = VerbEnding()
        self.lanes: dict[tuple[str, ...], int] = {}  # that were looked up
        self.events: list[NewEvent] = []
        self.beside: list[Model] = []  # new rows of other tables
        self.guesses: list[FailureExplanation] = []
        self._new: dict[str, Job | Lease] = {}
        self._changed: dict[str, Job | Lease] = {}

    @property
    def _lists(self) -> list[list[Any]]:
        return [self.events, self.beside, self.guesses, self.ending.entered, self.ending.freed, self.ending.ended]

    def add(self, row: Job | Lease) -> None:
        self._new[_name(row)] = row

    def change(self, row: Job | Lease) -> None:
        if _name(row) not in self._new:
            self._changed[_name(row)] = row

    @contextmanager
    def unless_refused(self, holding: Holding) -> Iterator[None]:
        """Take back whatever was decided of this job inside, if it ends in a refusal."""
        rows = [(row, dict(vars(row))) for row in (holding.job, holding.lease)]
        lists = [(kept, len(kept)) for kept in self._lists]
        new, changed = dict(self._new), dict(self._changed)
        try:
            yield
        except LifecycleError:
            for row, before in rows:
                vars(row).clear()
                vars(row).update(before)
            for kept, length in lists:
                del kept[length:]
            self._new, self._changed = new, changed
            raise

    def flush(self) -> None:
        """Write it. A verb that wants to read what it has decided calls this, else it happens at its end."""
        new, changed, events = list(self._new.values()), list(self._changed.values()), list(self.events)
        self._new.clear()
        self._changed.clear()
        self.events.clear()
        jobs, leases = _apart(changed)
        self.ending.updated += [job.job_ulid for job in jobs if job.is_final]
        with_run = any(job.ingest_run_id is not None for job in jobs)
        added, granted = _apart(new)
        store(
            [New(Job, added), New(Lease, granted), New(JobEvent, events)],
            [Change(Job, jobs, WITH_RUN if with_run else STORED), Change(Lease, leases, STORED_OF_LEASE)],
        )
        for job in added:
            if job.state == JobState.QUEUED and job.lane_id is not None:
                self.ending.entered.append((job.pk, job.lane_id, job.created_at))
        self._flush_beside()

    def _flush_beside(self) -> None:
        self.beside += [row for row in self.ending.ended if row.pk is None]
        for model, rows in itertools.groupby(sorted(self.beside, key=_kind), key=type):
            model.objects.bulk_create(rows)  # type: ignore[attr-defined] # every model has its manager
        self.beside.clear()
        guesses, self.guesses = self.guesses, []
        if not guesses:
            return
        try:
            with transaction.atomic():
                FailureExplanation.objects.bulk_create(guesses)
        except DatabaseError:  # a guess that cannot be stored is no reason to lose a result
            log.exception("no explanation of %s", ", ".join(guess.job_id for guess in guesses))


def _name(row: Job | Lease) -> str:
    return row.job_ulid if isinstance(row, Job) else row.lease_ulid


def _apart(rows: list[Job | Lease]) -> tuple[list[Job], list[Lease]]:
    jobs = [row for row in rows if isinstance(row, Job)]
    return jobs, [row for row in rows if isinstance(row, Lease)]


def _kind(row: Model) -> str:
    return type(row).__name__
