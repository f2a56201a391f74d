"""Submits many jobs in one transaction, with a result for each, and as many statements for 500 jobs as for one.

`submit_many` submits the jobs of one request, `submit_together` the requests of several clients for one job each.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from leases.scheduling.limits import KeyRoom
from leases.scheduling.submit_quotas import QuotaChanged
from orchestrator.core.idempotency import IdempotentRequest, bound_among, replays_before_refusals
from orchestrator.core.unit_of_work import NeedsTransaction, UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.admission import AdmissionContext, load_context
from orchestrator.services.dependencies import DependencyStatus, lock_dependencies
from orchestrator.services.submission import Submission, admit_job, enqueue_job, new_job, submit
from orchestrator.services.transitions import OperationResult
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


@dataclass(frozen=True)
class SubmitRequest:
    """A request for one job; see `submission.submit`."""

    submission: Submission
    actor: Actor
    idempotency: IdempotentRequest | None = None

    @property
    def locks_other_rows(self) -> bool:
        """Whether other jobs must be locked, or a repetition recognized by an id that the client has chosen."""
        submission = self.submission
        return bool(submission.depends_on or submission.group or submission.job_ulid is not None)


def submit_together(
    requests: Sequence[SubmitRequest],
    *,
    policy_for: Callable[[str], JobPolicy],
    default_pool: str,
    now: datetime | None = None,
) -> list[OperationResult | Exception]:
    """Queue the jobs of several clients, each as `submission.submit` does.

    Most are queued by one operation. Requests that it leaves open follow by themselves: repetitions, those that lock
    other rows, and those of an organization whose quota must be recounted. If the one operation fails, nothing is
    queued. An error of one that follows is its result, because the others are queued by then.
    """
    results: dict[int, OperationResult | Exception] = {}
    together = {place: request for place, request in enumerate(requests) if not request.locks_other_rows}
    if len(together) > 1:
        results |= _submit_together(together, policy_for=policy_for, default_pool=default_pool, now=now)
    for place, request in enumerate(requests):
        if place not in results:
            results[place] = _submit_alone(request, policy_for, default_pool, now)
    return [results[place] for place in range(len(requests))]


def _submit_alone(
    request: SubmitRequest, policy_for: Callable[[str], JobPolicy], default_pool: str, now: datetime | None
) -> OperationResult | Exception:
    try:
        return submit(
            request.submission,
            policy=policy_for(request.submission.spec.job_type),
            default_pool=default_pool,
            actor=request.actor,
            idempotency=request.idempotency,
            now=now,
        )
    except Exception as error:  # noqa: BLE001 see `submit_together`
        return error


@operation(optimistic=True, confirm_refusals=False)
def _submit_together(
    uow: UnitOfWork,
    requests: Mapping[int, SubmitRequest],
    *,
    policy_for: Callable[[str], JobPolicy],
    default_pool: str,
    now: datetime | None,
) -> dict[int, OperationResult | Exception]:
    """Return the results of the requests that can be decided together. Keys are bound by an optimistic attempt only."""
    tried = _without_bound_keys(requests) if uow.is_optimistic else _without_keys(requests)
    context = load_context(
        uow, {request.submission.project_key for request in tried.values()}, default_pool=default_pool
    )
    now = now or context.now
    no_dependencies = lock_dependencies((), org_slugs=())
    results: dict[int, OperationResult | Exception] = {}
    admitted: dict[int, _Admitted] = {}
    for place, request in tried.items():
        submission = request.submission
        job = new_job(submission, policy_for(submission.spec.job_type))
        try:
            admitted[place] = _Admitted(job, submission, admit_job(job, submission, context, no_dependencies))
        except LifecycleError as refusal:
            if request.idempotency is None:  # a repetition is not refused, and its key may have been bound meanwhile
                results[place] = refusal
        except (QuotaChanged, NeedsTransaction):
            continue
    transitions.look_up_lanes(uow, (entry.job for entry in admitted.values()))
    for place, entry in admitted.items():
        request = tried[place]
        if request.idempotency is not None:
            request.idempotency.bind_with(uow, entry.job.job_ulid, now=now)
        job = enqueue_job(uow, entry.job, entry.submission, entry.status, now=now, actor=request.actor)
        results[place] = OperationResult(job)
    return results


def _without_bound_keys(requests: Mapping[int, SubmitRequest]) -> dict[int, SubmitRequest]:
    """Return the requests without those whose key is bound, or is that of an earlier request among these."""
    keys = [request.idempotency for request in requests.values() if request.idempotency is not None]
    seen = {(key.principal, key.operation, key.key) for key in bound_among(keys)}
    found = {}
    for place, request in requests.items():
        if (key := request.idempotency) is not None:
            if (name := (key.principal, key.operation, key.key)) in seen:
                continue
            seen.add(name)
        found[place] = request
    return found


def _without_keys(requests: Mapping[int, SubmitRequest]) -> dict[int, SubmitRequest]:
    return {place: request for place, request in requests.items() if request.idempotency is None}


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
