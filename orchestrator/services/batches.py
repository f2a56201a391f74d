"""Jobs that belong together: submitted in one transaction, canceled together, run again as a new batch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from orchestrator.services.admission import load_context
from orchestrator.services.cancellation import cancel_locked
from orchestrator.services.dependencies import EMPTY_SNAPSHOT
from orchestrator.services.idempotency import IdempotentRequest
from orchestrator.services.submission import Submission, admit_job, enqueue_job, is_limited, new_job
from orchestrator.services.unit_of_work.operation import current_unit_of_work, operation
from runtime_jobs.batch_state import BATCH_FINAL, BatchState, JobOutcome, aggregate_state
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import AlreadyFinal, Invalid, NotFound
from runtime_jobs.events import Actor
from runtime_jobs.models import Batch, Job
from runtime_jobs.policy import JobPolicy
from runtime_jobs.specs import JOB_TYPES, JobSpec, RepositorySource
from runtime_jobs.states import FINAL_STATES, CancelReason

MAX_JOBS = 64
OPTIONAL = "optional"  # in a batch's details: the roots of the jobs that do not decide how it ends


@dataclass(frozen=True)
class BatchJob:
    """One job of a batch to be. Without `required` it may fail and the batch succeed."""

    spec: JobSpec
    required: bool = True


@dataclass(frozen=True)
class BatchSubmission:
    """Whose batch it is, on what, and who asked for it from where. `details`: what only the door knows."""

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
    """A batch after a verb. `replayed`: an earlier request with the same key made it. `accepted`: asked for, not
    done."""

    batch: Batch
    replayed: bool = False
    accepted: bool = False


@operation
def submit_batch(
    origin: BatchSubmission,
    jobs: Sequence[BatchJob],
    *,
    policy_of: Callable[[str], JobPolicy],
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> BatchOutcome:
    """Queue all jobs or none. With `once`, the same request again returns the first batch.

    Raises what `place` raises, Invalid, IdempotencyConflict."""
    at = now or database_now()
    if idempotency and (first := idempotency.known()):
        return BatchOutcome(Batch.objects.get(batch_ulid=first), replayed=True)
    return _create(
        _new(origin),
        origin,
        jobs,
        policy_of=policy_of,
        default_pool=default_pool,
        actor=actor,
        idempotency=idempotency,
        at=at,
    )


@operation
def rerun_batch(
    *,
    batch_ulid: str,
    policy_of: Callable[[str], JobPolicy],
    default_pool: str,
    actor: Actor,
    correlation_id: str,
    source_address: str | None,
    reason: str = "",
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> BatchOutcome:
    """The same jobs again as a new batch, admitted by today's rules; the old one stays as it is, whatever its state.
    `reason` takes the place of the old one's in its details.

    Raises NotFound, what `place` raises, IdempotencyConflict."""
    at = now or database_now()
    old = _found(batch_ulid)
    if idempotency and (first := idempotency.known()):
        return BatchOutcome(Batch.objects.get(batch_ulid=first), replayed=True)
    firsts = Job.objects.filter(batch=old, attempt=1).order_by("id")
    optional = set(old.details.get(OPTIONAL, ()))
    jobs = [BatchJob(JOB_TYPES[job.job_type].asked(job), job.root_job_ulid not in optional) for job in firsts]
    origin = replace(_origin(old, actor), correlation_id=correlation_id, source_address=source_address)
    batch = _new(origin)
    batch.details |= {"reason": reason} if reason else {}
    batch.rerun_of = old.batch_ulid
    batch.repo_url, batch.git_ref, batch.git_commit = old.repo_url, old.git_ref, old.git_commit
    return _create(
        batch, origin, jobs, policy_of=policy_of, default_pool=default_pool, actor=actor, idempotency=idempotency, at=at
    )


@operation
def cancel_batch(
    *, batch_ulid: str, actor: Actor, deadline_seconds: float, message: str = "", now: datetime | None = None
) -> BatchOutcome:
    """Cancel what waits at once and ask the holders of what runs, for the reason `batch_canceled`.

    A repeat changes nothing. Raises NotFound, AlreadyFinal (it has ended otherwise)."""
    batch = _found(batch_ulid, locked=True)
    state = state_of(batch)
    if state in BATCH_FINAL and state != BatchState.CANCELED:
        raise AlreadyFinal(f"The batch is {state} already.", job_status=str(state))
    if state == BatchState.CANCELED:
        return BatchOutcome(batch)
    if batch.cancel_requested_at is None:
        batch.cancel_requested_at, batch.cancel_reason = now or database_now(), CancelReason.BATCH_CANCELED
        batch.save(update_fields=["cancel_requested_at", "cancel_reason"])
    asked = list(_canceled(batch, now=now, actor=actor, deadline_seconds=deadline_seconds, message=message))
    return BatchOutcome(batch, accepted=any(asked))


def _canceled(
    batch: Batch, *, now: datetime | None, actor: Actor, deadline_seconds: float, message: str
) -> Iterable[bool]:
    """Say of each open job whether its holder was asked. Look until none is left: while we waited for a lock its job
    may have failed, and its automatic retry is a row that the look before could not see."""
    left = Job.objects.filter(batch=batch, cancel_requested_at=None).exclude(state__in=FINAL_STATES)
    while found := list(left.values_list("pk", flat=True)):
        locked = list(Job.objects.locked().filter(pk__in=found).order_by("id"))
        at = now or database_now()
        for job in locked:
            yield cancel_locked(
                job,
                at=at,
                actor=actor,
                deadline_seconds=deadline_seconds,
                reason=CancelReason.BATCH_CANCELED,
                message=message,
            ).accepted
        current_unit_of_work().flush()


def state_of(batch: Batch) -> BatchState:
    """Rolled up from the newest attempt of each job."""
    jobs = Job.objects.filter(batch=batch).only("root_job_ulid", "attempt", "state", "failure_reason")
    return rolled_up(batch, jobs.order_by("root_job_ulid", "-attempt").distinct("root_job_ulid"))


def rolled_up(batch: Batch, jobs: Iterable[Job]) -> BatchState:
    """The same from rows that are at hand: all attempts, or the newest."""
    optional = set(batch.details.get(OPTIONAL, ()))
    newest = {job.root_job_ulid: job for job in sorted(jobs, key=lambda one: one.attempt)}
    standings = [JobOutcome(job.state, job.failure_reason, root not in optional) for root, job in newest.items()]
    return aggregate_state(standings, cancel_requested=batch.cancel_requested_at is not None)


def _found(batch_ulid: str, *, locked: bool = False) -> Batch:
    batches = Batch.objects.select_for_update(no_key=True) if locked else Batch.objects.all()
    batch = batches.filter(batch_ulid=batch_ulid).first()
    if batch is None:
        raise NotFound("There is no such batch.")
    return batch


def _origin(batch: Batch, actor: Actor) -> BatchSubmission:
    """As it was, but asked for by somebody else now."""
    return BatchSubmission(
        org_slug=batch.org_slug,
        project_slug=batch.project_slug,
        source=None,
        trigger_kind="manual",
        trigger_actor=actor.name[:200],
        correlation_id=batch.correlation_id,
        source_address=None,
        details={name: value for name, value in batch.details.items() if name != OPTIONAL},
    )


def _new(origin: BatchSubmission) -> Batch:
    source = origin.source
    return Batch(
        org_slug=origin.org_slug,
        project_slug=origin.project_slug,
        repo_url=source.repo_url if source else None,
        git_ref=source.ref if source else None,
        git_commit=source.git_commit if source else None,
        trigger_kind=origin.trigger_kind,
        trigger_actor=origin.trigger_actor,
        details=dict(origin.details),
        correlation_id=origin.correlation_id,
    )


def _create(
    batch: Batch,
    origin: BatchSubmission,
    planned: Sequence[BatchJob],
    *,
    policy_of: Callable[[str], JobPolicy],
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None,
    at: datetime,
) -> BatchOutcome:
    if not 1 <= len(planned) <= MAX_JOBS:
        raise Invalid({"jobs": [f"A batch has 1 to {MAX_JOBS} jobs."]})
    if idempotency and (first := idempotency.settle(batch.batch_ulid, at=at)) != batch.batch_ulid:
        return BatchOutcome(Batch.objects.get(batch_ulid=first), replayed=True)
    batch.created_at = at
    batch.save(force_insert=True)
    known = load_context([(origin.org_slug, origin.project_slug)], default_pool=default_pool)
    optional = []
    for one in planned:
        submission = _submission(origin, one.spec)
        job = new_job(submission, policy_of(one.spec.job_type))
        job.batch = batch
        enqueue_job(
            job,
            submission,
            admit_job(job, submission, known, EMPTY_SNAPSHOT, limited=is_limited(actor)),
            at=at,
            actor=actor,
        )
        if not one.required:
            optional.append(job.root_job_ulid)
    if optional:
        batch.details[OPTIONAL] = optional
        batch.save(update_fields=["details"])
    return BatchOutcome(batch)


def _submission(origin: BatchSubmission, spec: JobSpec) -> Submission:
    return Submission(
        org_slug=origin.org_slug,
        project_slug=origin.project_slug,
        spec=spec,
        trigger_kind=origin.trigger_kind,
        trigger_actor=origin.trigger_actor,
        correlation_id=origin.correlation_id,
        source_address=origin.source_address,
    )
