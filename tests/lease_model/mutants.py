"""The operations with one check removed, each in its own way. The state machine must detect every one."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import pytest
from django.db import connection

from leases import fencing
from leases.models import Lease
from leases.sql_functions import read_sql
from orchestrator.core import bulk_write
from orchestrator.services import cancellation, expiry, heartbeat, job_end, late_results, retries, transitions


@dataclass(frozen=True)
class Mutant:
    """`function` with `guard` replaced by `without`, and so on for `more`."""

    name: str
    function: Callable[..., Any]
    guard: str
    without: str
    more: tuple[tuple[str, str], ...] = ()

    @property
    def original(self) -> FunctionType:
        found = inspect.unwrap(self.function)
        assert isinstance(found, FunctionType)
        return found

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.original, "__code__", self.code())

    def code(self) -> CodeType:
        """Raises AssertionError if the guard does not stand there any more, or more than once."""
        source = textwrap.dedent(inspect.getsource(self.original))
        for guard, without in ((self.guard, self.without), *self.more):
            assert source.count(guard) == 1, f"{self.name}: {guard!r} is not there once"
            source = source.replace(guard, without)
        tree = ast.parse(source)
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        scratch = dict(self.original.__globals__)
        exec(compile(tree, f"<{self.name}>", "exec"), scratch)
        made = scratch[definition.name].__code__
        assert isinstance(made, CodeType)
        return made


@dataclass(frozen=True)
class SqlMutant:
    """The claim with `guard` replaced by `without`, until the transaction of the test is rolled back."""

    name: str
    guard: str
    without: str

    def apply(self, _monkeypatch: pytest.MonkeyPatch) -> None:
        """Raises AssertionError if the guard does not stand there any more, or more than once."""
        source = read_sql()
        assert source.count(self.guard) == 1, f"{self.name}: {self.guard!r} is not there once"
        with connection.cursor() as cursor:
            cursor.execute(source.replace(self.guard, self.without))


# "No check for a final state" is not among them: a job that has ended has no open lease, so nothing would change.
MUTANTS = (
    # The eight of the design.
    Mutant("no fence", fencing.require_valid_lease, "if not lease.is_open:", "if False:",
           (("not lease.is_live(holding.now)", "lease.expires_at <= holding.now"), ("lease.fence != job.fence", "False"))),
    Mutant("no expiry", fencing.require_valid_lease, "if not lease.is_live(holding.now):", "if False:"),
    Mutant("heartbeats shorten", transitions.extend_lease, "max(lease.expires_at, now + timedelta(seconds=lease.ttl_seconds))",
           "now + timedelta(seconds=lease.ttl_seconds / 2)"),
    Mutant("cancel unasked", job_end.acknowledge_cancel, "locked.job.cancel_requested_at is None", "False"),
    Mutant("the clock is early", expiry.expire, "locked is None or locked.lease.is_live(locked.now)",
           "locked is None"),
    Mutant("a running job waits again", expiry.end_lease_externally, "lease.state == LeaseState.GRANTED", "True"),
    Mutant("retries for ever", transitions.retry_or_escalate, "and job.automatic_retries_spent < job.automatic_retries", ""),
    Mutant("a heartbeat acknowledges nothing", heartbeat.validate_and_acknowledge,
           "transitions.acknowledge(\n        uow, locked.job, locked.lease, now=locked.now, actor=actor_of(worker), runner_id=runner\n    )", "False"),
    # The optimistic attempt.
    Mutant("no version comparison of the lease", bulk_write._compared, "versions.of_leases(changes.leases)", "[]"),
    Mutant("no version comparison of the job", bulk_write._compared, "versions.of_jobs(changes.jobs)", "[]"),
    # Ours.
    Mutant("alive at the last moment", Lease.is_live, "self.expires_at > now", "self.expires_at >= now"),
    Mutant("anybody's lease", fencing.lock_lease, "_LOCK_JOB.first(lease_ulid, worker.worker_id)",
           "Job.objects.locked().filter(job_ulid__in=Lease.objects.filter(lease_ulid=lease_ulid).values('job')).first()"),
    Mutant("another last word", job_end.is_duplicate, "if stored == digest:", "if True:"),
    Mutant("a repeated message has no second effect", job_end.is_duplicate, "if stored is not None:", "if False:"),
    Mutant("forced at once", expiry.force_cancel, "or locked.job.cancel_deadline_at > locked.now", ""),
    Mutant("timed out at once", expiry.exceeded_limit, "since is None or now - since <= timedelta(seconds=limit)",
           "since is None"),
    Mutant("a cancel is forgotten", transitions.fail_or_cancel, "job.cancel_requested_at is not None", "False"),
    Mutant("a success after the deadline", job_end._precedes_cancel, "and in_time", ""),
    SqlMutant("more than it can hold", "number := least(p_max_jobs, number)", "number := p_max_jobs"),
    SqlMutant("a worker gets a job that it cannot run", "p_names[(slot - 1) / p_max_jobs + 1] <> ALL (item.excluded_workers::text[])",
              "true"),
    SqlMutant("the same fence again", "j.fence + 1 AS fence", "greatest(j.fence, 1) AS fence"),
    Mutant("requeued for ever", expiry._end_unacknowledged, "job.requeue_count >= job.max_requeues", "False"),
    Mutant("retried while it runs", retries.require_retryable, "if not job.is_final:", "if False:"),
    # Jobs that settle.
    Mutant("late for ever", fencing.accepts_late_result, "holding.now < job.late_result_at", "True"),
    Mutant("an older lease's late result", fencing.accepts_late_result, "or holding.lease.fence != job.fence", ""),
    Mutant("anybody's late result", fencing.lock_newest_lease, ", worker_id=worker.worker_id", ""),
    Mutant("no table of transitions", transitions.transition, "if not can_transition(job.state, target):", "if False:"),
    Mutant("settled twice", late_results.settle, "if job.state != JobState.PROCESSING:", "if False:"),
    Mutant("given up early", late_results._is_given_up, "or job.late_result_at > now", ""),
    Mutant("lost in spite of a cancel", transitions.end_without_result, "or job.cancel_requested_at is not None", ""),
    Mutant("canceled while it is read", cancellation.cancel, "job.state == JobState.PROCESSING", "False"),
    Mutant("a lost job is asked to stop", cancellation.cancel_locked, "or job.state == JobState.LOST", ""),
    Mutant("heartbeats past the limit", heartbeat.renew_lease, "end_if_timed_out(uow, locked) is not None", "False"),
    Mutant("renews for another worker", fencing._is_owned, "lease.worker_id == owners[lease.lease_ulid].worker_id", "True"),
    Mutant("a result is not read", job_end.apply_success, "if job.needs_processing:", "if False:"),
    Mutant("retried twice", retries.require_retryable, "if newer is not None:", "if False:"),
)  # fmt: skip
