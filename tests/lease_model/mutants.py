"""The operations with one check removed, each in its own way. The state machine must detect every one."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from leases import fencing
from leases.models import Lease
from orchestrator.services import claiming, expiry, finish, heartbeat, submission, transitions


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


# "No check for a final state" is not among them: a job that has ended has no open lease, so nothing would change.
MUTANTS = (
    # The eight of the design.
    Mutant("no fence", fencing.require_valid_lease, "if not lease.is_open:", "if False:",
           (("not lease.is_live(holding.at)", "lease.expires_at <= holding.at"), ("lease.fence != job.fence", "False"))),
    Mutant("no expiry", fencing.require_valid_lease, "if not lease.is_live(holding.at):", "if False:"),
    Mutant("heartbeats shorten", transitions.extend_lease, "max(lease.expires_at, at + timedelta(seconds=lease.ttl_seconds))",
           "at + timedelta(seconds=lease.ttl_seconds / 2)"),
    Mutant("cancel unasked", finish.acknowledge_cancel, "holding.job.cancel_requested_at is None", "False"),
    Mutant("the clock is early", expiry.expire, "holding is None or holding.lease.is_live(holding.at)",
           "holding is None"),
    Mutant("a running job waits again", expiry.end_lease_externally, "lease.state == LeaseState.GRANTED", "True"),
    Mutant("retries for ever", transitions.fail_or_cancel, "and job.automatic_retries_spent < job.automatic_retries", ""),
    Mutant("a heartbeat acknowledges nothing", heartbeat.validate_and_acknowledge,
           "transitions.acknowledge(holding.job, holding.lease, at=holding.at, by=actor_of(worker), runner_id=runner)", "pass"),
    # Ours.
    Mutant("alive at the last moment", Lease.is_live, "self.expires_at > at", "self.expires_at >= at"),
    Mutant("anybody's lease", fencing.lock_lease, "_LOCK_JOB.first(lease_ulid, worker.worker_id)",
           "Job.objects.locked().filter(job_ulid__in=Lease.objects.filter(lease_ulid=lease_ulid).values('job')).first()"),
    Mutant("another last word", finish.is_duplicate, "if told == digest:", "if True:"),
    Mutant("nothing is told twice", finish.is_duplicate, "if told is not None:", "if False:"),
    Mutant("forced at once", expiry.force_cancel, "or holding.job.cancel_deadline_at > holding.at", ""),
    Mutant("timed out at once", expiry.exceeded_limit, "since is None or at - since <= timedelta(seconds=limit)",
           "since is None"),
    Mutant("a cancel is forgotten", transitions.fail_or_cancel, "job.cancel_requested_at is not None", "False"),
    Mutant("a success after the deadline", finish._beats_cancel, "and in_time", ""),
    Mutant("more than it can hold", claiming._claimed, "min(limit, worker.capacity - _held(worker, now))", "limit"),
    Mutant("requeued for ever", expiry._never_started, "job.requeue_count >= job.max_requeues", "False"),
    Mutant("retried while it runs", submission.require_retryable, "if not job.is_final:", "if False:"),
    Mutant("retried twice", submission.require_retryable, "if newer is not None:", "if False:"),
)  # fmt: skip
