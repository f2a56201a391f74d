"""Batches: jobs that are submitted in one transaction, canceled together, and rerun as a new batch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.admission import load_context
from orchestrator.services.cancellation import cancel_locked
from orchestrator.services.dependencies import EMPTY_SNAPSHOT
from orchestrator.services.retries import is_limited
from orchestrator.services.submission import Submission, admit_job, enqueue_job, new_job
from runtime_jobs.batch_state import BATCH_FINAL, BatchState, JobOutcome, aggregate_state
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import AlreadyFinal, Invalid, NotFound, ResourceConflict
from runtime_jobs.events import Actor
from runtime_jobs.models import Batch, Job, WorkflowRun
from runtime_jobs.specs import ACTIONS, JOB_TYPES, JobPolicy, JobSpec, RepositorySource
from runtime_jobs.specs.actions import is_skipped
from runtime_jobs.states import FINAL_STATES, CancelReason, JobState, trigger_of_rerun

MAX_JOBS = 64
OPTIONAL = "optional"  # the key in a batch's details of the roots of jobs that may fail


@dataclass(frozen=True)
class BatchJob:
    """A job of a new batch.

    Attributes:
        spec: The specification: what to execute.
        required: Whether the batch fails if this job fails.
    """

    spec: JobSpec
    required: bool = True


@dataclass(frozen=True)
class BatchSubmission:
    """A request for a batch.

    Attributes:
        org_slug: The organization of the batch.
        project_slug: The project of the batch.
        source: The commit of the batch, or None.
        trigger_kind: The kind of the cause, such as `push`.
        trigger_actor: The name of the person or program that caused the request.
        correlation_id: An id of the caller that links requests.
        source_address: The client's IP address.
        details: Values that only the API of the caller interprets.
    """

    org_slug: str
    project_slug: str
    source: RepositorySource | None
    trigger_kind: str
    trigger_actor: str | None
    correlation_id: str
    source_address: str | None
    details: dict[str, Any]


@dataclass(frozen=True)
class BatchOutcome:
    """A batch after an operation.

    Attributes:
        batch: The batch.
        replayed: An earlier request with the same idempotency key made the batch.
        accepted: The operation was requested and takes effect later.
    """

    batch: Batch
    replayed: bool = False
    accepted: bool = False


@operation
def submit_batch(
    uow: UnitOfWork,
    submission: BatchSubmission,
    jobs: Sequence[BatchJob],
    *,
    policy_for: Callable[[str], JobPolicy],
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> BatchOutcome:
    """Queue all jobs of a batch, or none.

    Args:
        submission: The request.
        jobs: 1 to `MAX_JOBS` jobs.
        policy_for: Returns the policy of a job type.
        default_pool: The slug of the pool of projects that name none.
        actor: The client.
        idempotency: The idempotency key. The same request again returns the first batch.

    Raises:
        LifecycleError: Any error of `admit_job` for one of the jobs.
        Invalid: The number of jobs is out of range.
        IdempotencyConflict: The key was used with another request.
    """
    if idempotency and (first := idempotency.lookup()):
        return BatchOutcome(Batch.objects.get(batch_ulid=first), replayed=True)
    batch = _new_batch(submission)
    return _create(
        uow,
        batch,
        submission,
        jobs,
        policy_for=policy_for,
        default_pool=default_pool,
        actor=actor,
        idempotency=idempotency,
        now=now,
    )


@operation
def rerun_batch(
    uow: UnitOfWork,
    *,
    batch_ulid: str,
    policy_for: Callable[[str], JobPolicy],
    default_pool: str,
    cause: Cause,
    correlation_id: str,
    idempotency: IdempotentRequest | None = None,
) -> BatchOutcome:
    """Submit the jobs of a batch again as a new batch, by today's admission rules. The old batch stays as it is.

    Args:
        batch_ulid: The old batch, in any state.
        policy_for: Returns the policy of a job type.
        default_pool: The slug of the pool of projects that name none.
        correlation_id: An id of the caller that links requests.
        idempotency: The idempotency key. The same request again returns the first new batch.

    Raises:
        NotFound: The batch does not exist.
        ResourceConflict: The batch is a workflow run; see `rerun_workflow`.
        LifecycleError: Any error of `admit_job` for one of the jobs.
        IdempotencyConflict: The key was used with another request.
    """
    old = _get_batch(batch_ulid)
    if WorkflowRun.objects.filter(batch=old).exists():
        raise ResourceConflict("The batch is a workflow run. Rerun the run: its file is read again at its commit.")
    if idempotency and (first := idempotency.lookup()):
        return BatchOutcome(Batch.objects.get(batch_ulid=first), replayed=True)
    first_attempts = Job.objects.filter(batch=old, attempt=1).order_by("id")
    optional = set(old.details.get(OPTIONAL, ()))
    jobs = [
        BatchJob(JOB_TYPES[job.job_type].from_job(job), job.root_job_ulid not in optional) for job in first_attempts
    ]
    submission = replace(
        _resubmission(old, cause.actor), correlation_id=correlation_id, source_address=cause.source_address
    )
    batch = _new_batch(submission)
    batch.details |= {"reason": cause.reason} if cause.reason else {}
    batch.rerun_of = old.batch_ulid
    batch.repo_url, batch.git_ref, batch.git_commit = old.repo_url, old.git_ref, old.git_commit
    return _create(
        uow,
        batch,
        submission,
        jobs,
        policy_for=policy_for,
        default_pool=default_pool,
        actor=cause.actor,
        idempotency=idempotency,
        now=cause.now,
    )


@operation
def cancel_batch(
    uow: UnitOfWork,
    *,
    batch_ulid: str,
    actor: Actor,
    deadline_seconds: float,
    message: str = "",
    now: datetime | None = None,
) -> BatchOutcome:
    """Cancel all open jobs of a batch with the reason `batch_canceled`. A repetition changes nothing.

    Args:
        batch_ulid: The batch.
        actor: The client or operator.
        deadline_seconds: Seconds until the scheduler cancels leased jobs whose workers have not stopped them.
        message: A text for people.

    Raises:
        NotFound: The batch does not exist.
        AlreadyFinal: The batch ended otherwise.
    """
    batch = _get_batch(batch_ulid, locked=True)
    state = state_of(batch)
    if state in BATCH_FINAL and state != BatchState.CANCELED:
        raise AlreadyFinal(f"The batch has already ended: it is {state}.", job_status=str(state))
    if state == BatchState.CANCELED:
        return BatchOutcome(batch)
    if batch.cancel_requested_at is None:
        batch.cancel_requested_at, batch.cancel_reason = now or database_now(), CancelReason.BATCH_CANCELED
        batch.save(update_fields=["cancel_requested_at", "cancel_reason"])
    accepted = cancel_open_jobs(
        uow,
        batch,
        now=now,
        actor=actor,
        deadline_seconds=deadline_seconds,
        reason=CancelReason.BATCH_CANCELED,
        message=message,
    )
    return BatchOutcome(batch, accepted=accepted)


def cancel_open_jobs(
    uow: UnitOfWork,
    batch: Batch,
    *,
    now: datetime | None,
    actor: Actor,
    deadline_seconds: float,
    reason: CancelReason,
    message: str,
) -> bool:
    """Cancel the open jobs of a batch until none is left.

    While a lock is waited for, its job may fail. Its automatic retry is a row that the query before could not see.

    Args:
        batch: The batch.
        now: The time of the request, or None for the time of the database.
        actor: The cause.
        deadline_seconds: Seconds until the scheduler cancels leased jobs whose workers have not stopped them.
        reason: The kind of the request.
        message: A text for people.

    Returns:
        Whether the worker of any job was requested to stop.
    """
    accepted = False
    # A result that has arrived is not canceled, so its job would remain.
    untouched = [*FINAL_STATES, JobState.PROCESSING]
    remaining = Job.objects.filter(batch=batch, cancel_requested_at=None).exclude(state__in=untouched)
    while keys := list(remaining.values_list("pk", flat=True)):
        locked = list(Job.objects.locked().filter(pk__in=keys).order_by("id"))
        canceled_at = now or database_now()
        for job in locked:
            result = cancel_locked(
                uow,
                job,
                now=canceled_at,
                actor=actor,
                deadline_seconds=deadline_seconds,
                reason=reason,
                message=message,
            )
            accepted = accepted or result.accepted
        uow.flush()
    return accepted


def state_of(batch: Batch) -> BatchState:
    """Return the state of a batch, aggregated from the newest attempt of each job."""
    columns = ("root_job_ulid", "attempt", "state", "failure_reason", "job_type", "cancel_reason")
    jobs = Job.objects.filter(batch=batch).only(*columns)
    return aggregated_state(batch, jobs.order_by("root_job_ulid", "-attempt").distinct("root_job_ulid"))


def aggregated_state(batch: Batch, jobs: Iterable[Job]) -> BatchState:
    """Return the state of a batch from rows that are already read: all attempts, or the newest ones."""
    optional = set(batch.details.get(OPTIONAL, ()))
    newest = {job.root_job_ulid: job for job in sorted(jobs, key=lambda job: job.attempt)}
    outcomes = [
        JobOutcome(
            # The condition of a workflow job is no failure of the batch.
            JobState.SUCCEEDED if job.job_type == ACTIONS and is_skipped(job) else job.state,
            job.failure_reason,
            root not in optional,
        )
        for root, job in newest.items()
    ]
    return aggregate_state(outcomes, cancel_requested=batch.cancel_requested_at is not None)


def _get_batch(batch_ulid: str, *, locked: bool = False) -> Batch:
    batches = Batch.objects.select_for_update(no_key=True) if locked else Batch.objects.all()
    batch = batches.filter(batch_ulid=batch_ulid).first()
    if batch is None:
        raise NotFound("The batch does not exist.")
    return batch


def _resubmission(batch: Batch, actor: Actor) -> BatchSubmission:
    """Return the request of an old batch, now caused by this actor."""
    return BatchSubmission(
        org_slug=batch.org_slug,
        project_slug=batch.project_slug,
        source=None,
        trigger_kind=trigger_of_rerun(batch.trigger_kind),
        trigger_actor=actor.name[:200],
        correlation_id=batch.correlation_id,
        source_address=None,
        details={name: value for name, value in batch.details.items() if name != OPTIONAL},
    )


def _new_batch(submission: BatchSubmission) -> Batch:
    source = submission.source
    return Batch(
        org_slug=submission.org_slug,
        project_slug=submission.project_slug,
        repo_url=source.repo_url if source else None,
        git_ref=source.ref if source else None,
        git_commit=source.git_commit if source else None,
        trigger_kind=submission.trigger_kind,
        trigger_actor=submission.trigger_actor,
        details=dict(submission.details),
        correlation_id=submission.correlation_id,
    )


def _create(
    uow: UnitOfWork,
    batch: Batch,
    request: BatchSubmission,
    jobs: Sequence[BatchJob],
    *,
    policy_for: Callable[[str], JobPolicy],
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None,
    now: datetime | None,
) -> BatchOutcome:
    if not 1 <= len(jobs) <= MAX_JOBS:
        raise Invalid({"jobs": [f"A batch has 1 to {MAX_JOBS} jobs; this one has {len(jobs)}."]})
    context = load_context(uow, [(request.org_slug, request.project_slug)], default_pool=default_pool)
    now = now or context.now
    if idempotency and (first := idempotency.bind(batch.batch_ulid, now=now)) != batch.batch_ulid:
        return BatchOutcome(Batch.objects.get(batch_ulid=first), replayed=True)
    admitted, optional = [], []
    for batch_job in jobs:
        submission = _submission(request, batch_job.spec)
        job = new_job(submission, policy_for(batch_job.spec.job_type))
        status = admit_job(job, submission, context, EMPTY_SNAPSHOT, limited=is_limited(actor))
        admitted.append((job, submission, status))
        if not batch_job.required:
            optional.append(job.root_job_ulid)
    if optional:
        batch.details[OPTIONAL] = optional
    batch.created_at = now
    batch.save(force_insert=True)
    transitions.look_up_lanes(uow, (job for job, _, _ in admitted))
    for job, submission, status in admitted:
        job.batch = batch
        enqueue_job(uow, job, submission, status, now=now, actor=actor)
    return BatchOutcome(batch)


def _submission(request: BatchSubmission, spec: JobSpec) -> Submission:
    return Submission(
        org_slug=request.org_slug,
        project_slug=request.project_slug,
        spec=spec,
        trigger_kind=request.trigger_kind,
        trigger_actor=request.trigger_actor,
        correlation_id=request.correlation_id,
        source_address=request.source_address,
    )
