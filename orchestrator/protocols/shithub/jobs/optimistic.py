"""The two most frequent calls about a job by two statements each: the next chunk of a log, and a question for a cancel.

Whatever is not the steady case raises NeedsTransaction, and the call follows in a transaction from the beginning. So no
refusal is decided here.
"""

from datetime import timedelta

from rest_framework.exceptions import ValidationError

from orchestrator.core.counters import JWT_ISSUED, SCRUB_REPLACEMENT, count
from orchestrator.core.unit_of_work import NeedsTransaction, UnitOfWork
from orchestrator.http.api.fields import parse
from orchestrator.http.errors.problems import ApiError
from orchestrator.job_tokens.claims import JobToken, next_token
from orchestrator.job_tokens.verification import (
    RECORD_USE,
    MoreFacts,
    TokenFacts,
    read_facts,
    read_more_facts,
    use_values,
)
from orchestrator.protocols.shithub.base_view import read_object
from orchestrator.protocols.shithub.jobs.calls import CallAnswer, CallOutcome
from orchestrator.protocols.shithub.jobs.serializers import LogInput
from orchestrator.secrets.masks import masks_of
from orchestrator.services.heartbeat import MIN_EXTENSION
from orchestrator.step_logs.single_statement import (
    LOG_COLUMNS,
    LOG_JOINS,
    LeaseExtension,
    NextChunk,
    next_chunk,
    store_call,
)
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import new_instance


def append_log(uow: UnitOfWork, token: JobToken, job_id: int, raw: bytes) -> CallOutcome:
    """Append the next chunk to the log of a step of a job in execution.

    Raises:
        NeedsTransaction: The call is not that, or a row has changed meanwhile.
    """
    try:
        data = parse(LogInput, read_object(raw))
        facts, row = read_more_facts(token, MoreFacts(LOG_COLUMNS, LOG_JOINS, (data["step_id"],)))
        _require_steady(token, job_id, facts)
        job = new_instance(Job, {"id": job_id, "job_ulid": facts.job_ulid, "fence": facts.job_fence})
        chunk = next_chunk(job.job_ulid, row, seq=data["seq"], data=data["chunk"], masks=masks_of(job))
    except (ApiError, ValidationError, LifecycleError) as error:
        raise NeedsTransaction from error
    return _store(uow, token, facts, CallAnswer({"accepted": True}, status=202), chunk)


def check_cancel(uow: UnitOfWork, token: JobToken, job_id: int, raw: bytes) -> CallOutcome:  # noqa: ARG001 not read
    """Return whether a cancel of a job in execution was requested. The body is not read.

    Raises:
        NeedsTransaction: The job is not in execution, or a row has changed meanwhile.
    """
    facts = read_facts(token)
    _require_steady(token, job_id, facts)
    return _store(uow, token, facts, CallAnswer({"cancelled": facts.is_cancel_requested}), None)


def _require_steady(token: JobToken, job_id: int, facts: TokenFacts) -> None:
    """Check that the token counts, and that its job is in execution under it."""
    is_of_job = token.job_id == job_id and facts.run_id == token.run_id and token.chain == facts.chain
    if not is_of_job or facts.now >= token.expires_at or not facts.is_runner_valid or not facts.is_in_execution:
        raise NeedsTransaction


def _store(
    uow: UnitOfWork, token: JobToken, facts: TokenFacts, answer: CallAnswer, chunk: NextChunk | None
) -> CallOutcome:
    gate_values = use_values(token, facts.now)
    store_call(uow, gate=RECORD_USE, gate_values=gate_values, extension=_extension(facts), chunk=chunk)
    for _ in range(chunk.replacements if chunk else 0):
        uow.after_commit(count, SCRUB_REPLACEMENT)
    uow.after_commit(count, JWT_ISSUED)
    return CallOutcome(answer, next_token=next_token(token, now=facts.now))


def _extension(facts: TokenFacts) -> LeaseExtension | None:
    """Return the new expiry of the lease, or None if it would move by less than a second."""
    if facts.lease_id is None or facts.lease_expires_at is None or facts.ttl_seconds is None:
        raise NeedsTransaction
    until = facts.now + timedelta(seconds=facts.ttl_seconds)
    if until - facts.lease_expires_at < MIN_EXTENSION:
        return None
    return LeaseExtension(facts.lease_id, until, facts.now)
