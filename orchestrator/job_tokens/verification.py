"""Decides in the database whether a token counts: by job, run, lease, runner and chain (contract 1.3, 1.5)."""

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError

from leases.states import OPEN as OPEN_LEASES
from leases.states import LeaseState
from orchestrator.job_tokens.claims import InvalidJobToken, JobToken, TokenPurpose, verify
from orchestrator.job_tokens.partitions import TABLE, create_partitions
from runtime_jobs.prepared_queries import fetch_all
from runtime_jobs.states import JobState
from workers.registry.models import WorkerState

_CHECK_VIOLATION: Final = "23514"

# One snapshot of all that the claims of a token name. A row that does not exist leaves nulls.
_COLUMNS: Final = """clock_timestamp(), token.fence, worker.worker_id, worker.state, job.job_ulid, job.state, run.id,
       run.repository_id, job.fence, job.executing_at, job.timeout_seconds::bigint + job.timeout_grace_seconds,
       job.cancel_requested_at IS NOT NULL, lease.id, lease.lease_ulid, lease.state, lease.ttl_seconds,
       lease.expires_at, lease.final_digest IS NOT NULL,
       coalesce((SELECT number FROM actions_token_chains c WHERE c.job_id = job.id AND c.fence = lease.fence), 0)"""
_TABLES: Final = """(SELECT %s::bigint AS runner_id, %s::bigint AS job_id, %s::bigint AS fence) token
  LEFT JOIN workers_worker worker ON worker.id = token.runner_id
  LEFT JOIN runtime_jobs job ON job.id = token.job_id AND job.job_type = 'actions'
  LEFT JOIN workflow_runs run ON run.batch_id = job.batch_id
  LEFT JOIN runtime_worker_leases lease
    ON lease.job_ulid = job.job_ulid AND lease.fence = token.fence AND lease.worker_id = worker.worker_id
"""
_FACTS: Final = f"SELECT {_COLUMNS} FROM {_TABLES}"  # noqa: S608 our own names
# The insert of a used token, for a statement that does more. It has a row if this is the first use.
RECORD_USE: Final = """
INSERT INTO actions_used_tokens (expires_at, jti, runner_id, job_id, used_at)
SELECT %s::timestamptz, %s::text, %s::bigint, %s::bigint, %s::timestamptz {source}
    ON CONFLICT DO NOTHING RETURNING 1
"""
_USE: Final = RECORD_USE.format(source="")


@dataclass(frozen=True)
class TokenFacts:
    """The rows that the claims of a token name, all as of one statement. None: there is no such row.

    Attributes:
        now: The time of the database.
        fence: The fence of the token.
        worker_id: The id of the runner's worker.
        worker_state: The state of that worker.
        job_ulid: The id of the job.
        job_state: The state of the job.
        run_id: The key of the workflow run of the job.
        repository_id: The key of the repository of that run.
        job_fence: The newest fence of the job.
        executing_at: When the job began to execute.
        max_seconds: The time limit of the job, with the time that the server grants beyond it.
        is_cancel_requested: Whether a cancel of the job was requested.
        lease_id: The key of the lease of this runner on the job with the fence of the token.
        lease_ulid: The id of that lease.
        lease_state: The state of that lease.
        ttl_seconds: The time for which each message extends that lease.
        lease_expires_at: The expiry of that lease.
        has_reported_end: Whether the runner has ended the job under that lease.
        chain: The number of the newest chain of tokens of that lease.
    """

    now: datetime
    fence: int
    worker_id: str | None
    worker_state: str | None
    job_ulid: str | None
    job_state: str | None
    run_id: int | None
    repository_id: int | None
    job_fence: int | None
    executing_at: datetime | None
    max_seconds: int | None
    is_cancel_requested: bool
    lease_id: int | None
    lease_ulid: str | None
    lease_state: str | None
    ttl_seconds: int | None
    lease_expires_at: datetime | None
    has_reported_end: bool
    chain: int

    @property
    def is_runner_valid(self) -> bool:
        """Whether the runner exists and was not revoked."""
        return self.worker_id is not None and self.worker_state != WorkerState.REVOKED

    @property
    def is_lease_live(self) -> bool:
        """Whether the runner has the job."""
        if self.lease_state not in OPEN_LEASES or self.lease_expires_at is None:
            return False
        return self.now < self.lease_expires_at

    @property
    def is_ended_by_runner(self) -> bool:
        """Whether the runner itself has ended the job, and no later lease exists."""
        return self.has_reported_end and self.lease_state not in OPEN_LEASES and self._is_newest_lease

    @property
    def is_in_execution(self) -> bool:
        """Whether the job executes under the lease, within its time limit."""
        if not self.is_lease_live or self.lease_state != LeaseState.ACTIVE or not self._is_newest_lease:
            return False
        if self.job_state != JobState.EXECUTING or self.executing_at is None or self.max_seconds is None:
            return False
        return self.now <= self.executing_at + timedelta(seconds=self.max_seconds)

    @property
    def _is_newest_lease(self) -> bool:
        return self.fence == self.job_fence


_FACTS_FIELDS: Final = fields(TokenFacts)


@dataclass(frozen=True)
class MoreFacts:
    """Further columns to read with the facts of a token.

    Attributes:
        columns: Their SQL expressions.
        joins: The SQL that joins their tables. It may use the tables `job`, `run`, `lease` and `worker`.
        values: The values of the placeholders in `joins`.
    """

    columns: str
    joins: str
    values: tuple[object, ...]


@dataclass(frozen=True)
class CheckoutGrant:
    """A repository that a runner may read while it has a job.

    Attributes:
        repository_id: The key of the repository.
        job_id: The key of the job.
        run_id: The key of the workflow run.
        runner_id: The key of the runner.
    """

    repository_id: int
    job_id: int
    run_id: int
    runner_id: int


def read_facts(token: JobToken) -> TokenFacts:
    """Return what the database has about the claims of a token."""
    (row,) = fetch_all(_FACTS, [token.runner_id, token.job_id, token.fence])
    return TokenFacts(*row)


def read_more_facts(token: JobToken, more: MoreFacts) -> tuple[TokenFacts, tuple[Any, ...]]:
    """Return what the database has about the claims of a token, and further columns, all as of one statement."""
    sql = f"SELECT {more.columns}, {_COLUMNS} FROM {_TABLES} {more.joins}"  # noqa: S608 our own names
    (row,) = fetch_all(sql, [token.runner_id, token.job_id, token.fence, *more.values])
    place = len(row) - len(_FACTS_FIELDS)
    return TokenFacts(*row[place:]), tuple(row[:place])


def use_values(token: JobToken, now: datetime) -> list[object]:
    """Return the values of the placeholders in `RECORD_USE`."""
    return [token.expires_at, token.jti, token.runner_id, token.job_id, now]


def use_token(token: JobToken, *, now: datetime) -> bool:
    """Record that a token is used, in the caller's transaction, and return whether this is its first use.

    A second use waits until the transaction of the first one ends. If that was rolled back, the second one counts.

    Raises:
        IntegrityError: The day of the expiry has no partition: see `create_missing_partition`.
    """
    return bool(fetch_all(_USE, use_values(token, now)))


def create_missing_partition(error: IntegrityError, token: JobToken) -> bool:
    """Create the partition for a token if its absence caused an error, and return whether it did.

    Partitions are created days ahead by periodic tasks. This is for an installation whose tasks do not run.
    """
    diagnosis = getattr(error.__cause__, "diag", None)
    if diagnosis is None or (diagnosis.sqlstate, diagnosis.table_name) != (_CHECK_VIOLATION, TABLE):
        return False
    create_partitions(token.expires_at.date(), 1)
    return True


def verify_checkout_token(text: str) -> CheckoutGrant | None:
    """Return what a checkout token permits, or None: it is no such token, has expired, or the job is not in execution.

    Args:
        text: The password of a request for git.
    """
    try:
        token = verify(text)
    except InvalidJobToken:
        return None
    if token.purpose != TokenPurpose.CHECKOUT:
        return None
    facts = read_facts(token)
    if facts.now >= token.expires_at or not facts.is_runner_valid or not facts.is_lease_live:
        return None
    if (facts.run_id, facts.repository_id, facts.chain) != (token.run_id, token.repository_id, token.chain):
        return None
    return CheckoutGrant(token.repository_id, token.job_id, token.run_id, token.runner_id)
