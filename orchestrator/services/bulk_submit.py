"""Many jobs submitted in one call: one transaction, a result for each, as many statements for 500 as for one."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from leases.scheduling.limits import KeyRoom
from orchestrator.services.admission import AdmissionContext, load_context
from orchestrator.services.dependencies import DependencyStatus, lock_dependencies
from orchestrator.services.idempotency import IdempotentRequest
from orchestrator.services.submission import Submission, admit_job, enqueue_job, new_job
from orchestrator.services.unit_of_work.operation import current_unit_of_work, operation
from runtime_jobs.errors import Invalid, LifecycleError, QuotaExceeded, RecordedError
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.policy import JobPolicy


@dataclass(frozen=True)
class BulkOutcome:
    """What became of each entry, in their order. `replayed`: an earlier request with the same key made it."""

    results: list[Job | LifecycleError]
    replayed: bool = False


@dataclass(frozen=True)
class _Placed:
    """A job that may come in."""

    job: Job
    submission: Submission
    standing: DependencyStatus


@operation
def submit_many(
    entries: Sequence[Submission | LifecycleError],
    *,
    policy_of: Callable[[str], JobPolicy],
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> BulkOutcome:
    """Queue a job for each entry that may come in; one that is refused stops no other. What the door has refused stands
    among the entries as its refusal. With `once`, the same request again returns the first results.

    Raises IdempotencyConflict; and, if no entry may come in and a submit quota is why, QueueFull or
    SubmitRateExceeded: nothing is kept under the key then, so the same request may succeed later."""
    if idempotency and (told := idempotency.known()):
        return _remembered(told)
    submissions = [entry for entry in entries if isinstance(entry, Submission)]
    known = load_context({one.home for one in submissions}, default_pool=default_pool)
    at = now or known.at
    placed = _placed(entries, submissions, policy_of, known)
    _require_some(placed)
    told = _told(placed) if idempotency else ""
    if idempotency and (first := idempotency.settle(told, at=at)) != told:
        return _remembered(first)
    return BulkOutcome([_queued(one, at, actor) if isinstance(one, _Placed) else one for one in placed])


def _queued(one: _Placed, at: datetime, actor: Actor) -> Job:
    if one.submission.group:  # its group may have members among those before it, which it must find
        current_unit_of_work().flush()
    return enqueue_job(one.job, one.submission, one.standing, at=at, actor=actor)


def _placed(
    entries: Sequence[Submission | LifecycleError],
    submissions: Sequence[Submission],
    policy_of: Callable[[str], JobPolicy],
    known: AdmissionContext,
) -> list[_Placed | LifecycleError]:
    named = {name for one in submissions for name in one.depends_on}
    outlook = lock_dependencies(named, org_slugs={one.org_slug for one in submissions})
    keyed = {(one.org_slug, one.group.key) for one in submissions if one.group}
    keys = KeyRoom(keyed) if keyed else None
    policies = {name: policy_of(name) for name in {one.spec.job_type for one in submissions}}

    def tried(entry: Submission | LifecycleError) -> _Placed | LifecycleError:
        if isinstance(entry, LifecycleError):
            return entry
        job = new_job(entry, policies[entry.spec.job_type])
        try:
            if keys and entry.group:
                keys.take(entry.org_slug, entry.group.key)
            return _Placed(job, entry, admit_job(job, entry, known, outlook))
        except LifecycleError as refusal:
            return refusal

    return [tried(entry) for entry in entries]


def _require_some(placed: Sequence[_Placed | LifecycleError]) -> None:
    if any(isinstance(one, _Placed) for one in placed):
        return
    for one in placed:
        if isinstance(one, QuotaExceeded):
            raise one


def _told(placed: Sequence[_Placed | LifecycleError]) -> str:
    """What is kept under the key: the ids of the jobs, and the refusals."""
    return json.dumps([one.job.job_ulid if isinstance(one, _Placed) else _refusal(one) for one in placed])


def _refusal(error: LifecycleError) -> dict[str, Any]:
    facts = error.facts | ({"errors": error.errors} if isinstance(error, Invalid) else {})
    return {"code": error.code, "message": error.message, "facts": facts}


def _remembered(told: str) -> BulkOutcome:
    kept = json.loads(told)
    named = [one for one in kept if isinstance(one, str)]
    jobs = {job.job_ulid: job for job in Job.objects.select_related("batch").filter(job_ulid__in=named)}
    return BulkOutcome([jobs[one] if isinstance(one, str) else RecordedError(**one) for one in kept], replayed=True)
