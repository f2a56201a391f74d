"""Submits many jobs in one transaction, with a result for each, and as many statements for 500 jobs as for one."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from leases.scheduling.limits import KeyRoom
from orchestrator.core.idempotency import IdempotentRequest, replays_before_refusals
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.admission import AdmissionContext, load_context
from orchestrator.services.dependencies import DependencyStatus, lock_dependencies
from orchestrator.services.submission import Submission, admit_job, enqueue_job, new_job
from runtime_jobs.errors import Invalid, LifecycleError, QuotaExceeded, RecordedError
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.specs import JobPolicy


@dataclass(frozen=True)
class BulkOutcome:
    """The results of a bulk submit, in the order of its entries.

    Attributes:
        results: A job or a refusal for each entry.
        replayed: An earlier request with the same idempotency key made the jobs.
    """

    results: list[Job | LifecycleError]
    replayed: bool = False


@dataclass(frozen=True)
class _Admitted:
    """A new job that has been admitted."""

    job: Job
    submission: Submission
    status: DependencyStatus


@operation(optimistic=True, confirm_refusals=False)
def submit_many(
    uow: UnitOfWork,
    entries: Sequence[Submission | LifecycleError],
    *,
    policy_for: Callable[[str], JobPolicy],
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> BulkOutcome:
    """Queue a job for each entry that is admitted. A refused entry does not stop the others.

    Args:
        entries: Requests, and the refusals of entries that the API has already refused.
        policy_for: Returns the policy of a job type.
        default_pool: The slug of the pool of projects that name none.
        actor: The client.
        idempotency: The idempotency key. The same request again returns the first results.

    Raises:
        IdempotencyConflict: The key was used with another request.
        QueueFull: No entry is admitted, because the organization has as many waiting jobs as its plan allows. Nothing
            is stored under the key then, so the same request may succeed later.
        SubmitRateExceeded: No entry is admitted, because the organization submits too fast. As above.
    """
    submissions = [entry for entry in entries if isinstance(entry, Submission)]
    if any(submission.depends_on or submission.group for submission in submissions):
        uow.require_transaction()  # to lock other jobs
    if idempotency and not uow.is_optimistic and (stored := idempotency.lookup()):
        return _replay(stored)
    context = load_context(uow, {submission.project_key for submission in submissions}, default_pool=default_pool)
    now = now or context.now
    results = _admit_each(entries, submissions, policy_for, context)
    stored = _to_json(results) if idempotency else ""
    if idempotency and (first := idempotency.bind_with(uow, stored, now=now)) != stored:
        return _replay(first)
    with replays_before_refusals(uow):
        _require_any(results)
    transitions.look_up_lanes(uow, (result.job for result in results if isinstance(result, _Admitted)))
    return BulkOutcome(
        [_enqueue(uow, result, now, actor) if isinstance(result, _Admitted) else result for result in results]
    )


def _enqueue(uow: UnitOfWork, admitted: _Admitted, now: datetime, actor: Actor) -> Job:
    if admitted.submission.group:  # earlier entries of this call may be in its group, and must be found in the database
        uow.flush()
    return enqueue_job(uow, admitted.job, admitted.submission, admitted.status, now=now, actor=actor)


def _admit_each(
    entries: Sequence[Submission | LifecycleError],
    submissions: Sequence[Submission],
    policy_for: Callable[[str], JobPolicy],
    context: AdmissionContext,
) -> list[_Admitted | LifecycleError]:
    depends_on = {job_ulid for submission in submissions for job_ulid in submission.depends_on}
    snapshot = lock_dependencies(depends_on, org_slugs={submission.org_slug for submission in submissions})
    group_keys = {(submission.org_slug, submission.group.key) for submission in submissions if submission.group}
    key_room = KeyRoom(group_keys) if group_keys else None
    policies = {job_type: policy_for(job_type) for job_type in {entry.spec.job_type for entry in submissions}}

    def admit_entry(entry: Submission | LifecycleError) -> _Admitted | LifecycleError:
        if isinstance(entry, LifecycleError):
            return entry
        job = new_job(entry, policies[entry.spec.job_type])
        try:
            if key_room and entry.group:
                key_room.take(entry.org_slug, entry.group.key)
            return _Admitted(job, entry, admit_job(job, entry, context, snapshot))
        except LifecycleError as refusal:
            return refusal

    return [admit_entry(entry) for entry in entries]


def _require_any(results: Sequence[_Admitted | LifecycleError]) -> None:
    if any(isinstance(result, _Admitted) for result in results):
        return
    for result in results:
        if isinstance(result, QuotaExceeded):
            raise result


def _to_json(results: Sequence[_Admitted | LifecycleError]) -> str:
    """Return what is stored under the key: the ids of the jobs, and the refusals."""
    return json.dumps(
        [result.job.job_ulid if isinstance(result, _Admitted) else _refusal(result) for result in results]
    )


def _refusal(error: LifecycleError) -> dict[str, Any]:
    facts = error.facts | ({"errors": error.errors} if isinstance(error, Invalid) else {})
    return {"code": error.code, "message": error.message, "facts": facts}


def _replay(stored: str) -> BulkOutcome:
    entries = json.loads(stored)
    job_ulids = [entry for entry in entries if isinstance(entry, str)]
    jobs = {job.job_ulid: job for job in Job.objects.select_related("batch").filter(job_ulid__in=job_ulids)}
    return BulkOutcome(
        [jobs[entry] if isinstance(entry, str) else RecordedError(**entry) for entry in entries], replayed=True
    )
