"""One call of a runner about its job: the token, the effect and the next token are one transaction (contract 1.3).

A call that is accepted or refused for the client's fault uses its token; an error of the server does not, and neither
does a lease that the runner has lost. So the token is inserted first, a refusal is a result and not an exception, and
everything else rolls the transaction back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import IntegrityError
from rest_framework.exceptions import ValidationError

from leases.errors import StaleLease
from leases.fencing import lock_lease
from orchestrator.core.counters import JWT_ISSUED, JWT_REJECTED, JWT_REPLAY, CounterValue, count
from orchestrator.core.unit_of_work import NeedsTransaction, UnitOfWork, operation
from orchestrator.http.errors.problems import ApiError
from orchestrator.job_tokens.claims import JobToken, next_token
from orchestrator.job_tokens.verification import TokenFacts, create_missing_partition, read_facts, use_token
from orchestrator.protocols.shithub import errors
from orchestrator.protocols.shithub.authentication import INVALID_BEARER
from orchestrator.protocols.shithub.errors import not_found, unauthenticated
from orchestrator.services.heartbeat import MIN_EXTENSION
from orchestrator.workflows.job_rows import extend_running_lease, keep_lease
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import new_instance
from workers.models import Worker

SERVER_ERROR: Final = 500


class JobCall:
    """A call whose token is valid and used, within its transaction.

    Attributes:
        uow: The unit of work of the call.
        token: The claims of its token.
        facts: What the database has about them.
        worker: The runner, with its keys alone.
        counters: Counted after the commit.
    """

    def __init__(self, uow: UnitOfWork, token: JobToken, facts: TokenFacts) -> None:
        self.uow, self.token, self.facts = uow, token, facts
        self.worker = new_instance(Worker, {"id": token.runner_id, "worker_id": facts.worker_id})
        self.counters: list[CounterValue] = []

    @property
    def lease_ulid(self) -> str:
        """The lease under which the runner has or had the job."""
        if self.facts.lease_ulid is None:
            raise not_found()
        return self.facts.lease_ulid

    def keep_lease(self) -> Job:
        """Renew the lease, or accept a late message about the job that the runner itself has ended.

        A job in execution is not locked: a chunk of a log or a question for a cancel writes no row of it.

        Returns:
            The job. Of one that was not locked only the keys, the fence and the request of a cancel are set.

        Raises:
            StaleLease: The runner has lost the job, or the job has exceeded its time limit.
        """
        facts = self.facts
        if facts.is_ended_by_runner or (facts.is_in_execution and self._extend_lease()):
            return self._unlocked_job()
        locked = lock_lease(lease_ulid=self.lease_ulid, worker=self.worker)
        keep_lease(self.uow, locked, self.worker)
        return locked.job

    def _extend_lease(self) -> bool:
        """Extend the lease unless the expiry would move by less than a second; return whether it is live."""
        facts = self.facts
        if facts.lease_id is None or facts.lease_expires_at is None or facts.ttl_seconds is None:
            return False
        until = facts.now + timedelta(seconds=facts.ttl_seconds)
        if until - facts.lease_expires_at < MIN_EXTENSION:
            return True
        return extend_running_lease(facts.lease_id, until=until, now=facts.now)

    def _unlocked_job(self) -> Job:
        facts = self.facts
        known = {"id": self.token.job_id, "job_ulid": facts.job_ulid, "fence": facts.job_fence}
        requested_at = facts.now if facts.is_cancel_requested else None
        return new_instance(Job, known | {"cancel_requested_at": requested_at})


@dataclass(frozen=True)
class CallAnswer:
    """The answer to an accepted call.

    Attributes:
        body: The members of the response, without the next token.
        status: The HTTP status.
        continues: Whether the response contains the next token of the chain.
        after_commit: Returns further members of the JSON, which only the commit has decided.
    """

    body: dict[str, Any]
    status: int = 200
    continues: bool = True
    after_commit: Callable[[], dict[str, Any]] | None = None


@dataclass(frozen=True)
class CallOutcome:
    """The result of a call that has used its token.

    Attributes:
        answer: The answer, or None for a refused call.
        refusal: The refusal, or None for an accepted call.
        next_token: The next token of the chain, or None.
    """

    answer: CallAnswer | None = None
    refusal: ApiError | None = None
    next_token: JobToken | None = None


Effect = Callable[[JobCall], CallAnswer]
Attempt = Callable[[UnitOfWork], CallOutcome]


def perform_call(token: JobToken, job_id: int, effect: Effect, attempt: Attempt | None = None) -> CallOutcome:
    """Verify and use a token, and apply the effect of the call.

    Args:
        token: The claims of a token with a valid signature.
        job_id: The key of the job in the path.
        effect: Reads the body of the request and applies it. It runs in the transaction of the call.
        attempt: Performs the whole call without a transaction, or raises NeedsTransaction. It is tried first.

    Raises:
        ApiError: 401 or 404; the token does not count, and was not used.
    """
    try:
        outcome = _perform_call(token=token, job_id=job_id, effect=effect, attempt=attempt)
    except IntegrityError as error:
        if not create_missing_partition(error, token):
            raise
        outcome = _perform_call(token=token, job_id=job_id, effect=effect, attempt=attempt)
    if outcome.answer is not None and outcome.answer.after_commit is not None:
        outcome.answer.body.update(outcome.answer.after_commit())
    return outcome


@operation(optimistic=True)
def _perform_call(
    uow: UnitOfWork, *, token: JobToken, job_id: int, effect: Effect, attempt: Attempt | None
) -> CallOutcome:
    if uow.is_optimistic:
        if attempt is None:
            raise NeedsTransaction
        return attempt(uow)
    facts = read_facts(token)
    _require_valid(token, job_id, facts)
    if not use_token(token, now=facts.now):
        count([JWT_REPLAY])
        raise unauthenticated(INVALID_BEARER)
    call = JobCall(uow, token, facts)
    try:
        answer = effect(call)
    except StaleLease:
        raise not_found() from None  # as in step 9: nothing changes, and the token is not used
    except (LifecycleError, ApiError, ValidationError) as error:
        refusal = errors.to_error(error)
        if refusal is None or refusal.status >= SERVER_ERROR:
            raise
        return CallOutcome(refusal=refusal)
    following = next_token(token, now=facts.now) if answer.continues else None
    for value in [*call.counters, *([JWT_ISSUED] if following else [])]:
        uow.after_commit(count, value)
    return CallOutcome(answer, next_token=following)


def _require_valid(token: JobToken, job_id: int, facts: TokenFacts) -> None:
    """Check a token in the order of contract 1.3, steps 4 to 9.

    Raises:
        ApiError: 401, the token has expired, belongs to an ended chain, or its runner was revoked; 404, it is for
            another job, or the runner never had the job with it.
    """
    if facts.now >= token.expires_at:
        raise _rejected()
    if token.job_id != job_id:
        raise not_found()
    if not facts.is_runner_valid:
        raise _rejected()
    if facts.job_ulid is None or facts.run_id != token.run_id or facts.lease_ulid is None:
        raise not_found()
    if token.chain != facts.chain:
        raise _rejected()


def _rejected() -> ApiError:
    count([JWT_REJECTED])
    return unauthenticated(INVALID_BEARER)
