"""What clients and operators may do to a job: submit, cancel, retry."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from orchestrator.idempotency import Repeatable
from orchestrator.lifecycle import dependencies, moves
from orchestrator.lifecycle.admission import admit
from orchestrator.lifecycle.transaction import verb
from runtime_jobs.clock import database_time
from runtime_jobs.errors import AlreadyFinal, AlreadyRetried, NotFinal
from runtime_jobs.events import Actor
from runtime_jobs.models import Batch, Job
from runtime_jobs.models.jobs import RetryKind
from runtime_jobs.policy import Policy
from runtime_jobs.specs import Spec
from runtime_jobs.states import WAITING, CancelReason, JobState


@dataclass(frozen=True)
class Submission:
    """Whose job it is, what it shall do, who asked for it and from where. `pool` None: its project's. `depends_on`: ids
    of the jobs that have to succeed first."""

    org_slug: str
    project_slug: str
    spec: Spec
    trigger_kind: str
    trigger_actor: str | None
    correlation_id: str
    source_address: str | None
    pool: str | None = None
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A job after a verb. `replayed`: an earlier request with the same key made it. `accepted`: asked for, not done."""

    job: Job
    replayed: bool = False
    accepted: bool = False


@verb
def submit(
    submission: Submission,
    *,
    policy: Policy,
    default_pool: str,
    by: Actor,
    once: Repeatable | None = None,
    now: datetime | None = None,
) -> Outcome:
    """Queue a new job. With `once`, the same request again returns the first job.

    Raises what `admit` raises, InvalidDependency, and IdempotencyConflict."""
    at = now or database_time()
    job = new_job(submission, policy)
    if once and (first := once.settle(job.job_ulid, at=at)) != job.job_ulid:
        return Outcome(Job.objects.get(job_ulid=first), replayed=True)
    return Outcome(queue(job, submission, default_pool=default_pool, at=at, by=by))


def queue(
    job: Job, submission: Submission, *, default_pool: str, at: datetime, by: Actor, batch: Batch | None = None
) -> Job:
    """Let a new job in and store it, inside the verb that made it. Raises what `admit` raises, and
    InvalidDependency."""
    place = admit(
        org_slug=submission.org_slug,
        project_slug=submission.project_slug,
        spec=submission.spec,
        default_pool=default_pool,
        pool=submission.pool,
    )
    job.priority, job.pool, job.least_isolation = place.priority, place.pool, place.least_isolation
    job.batch = batch
    standing = dependencies.held_standing_of(dependencies.roots_of(submission.depends_on, org_slug=job.org_slug))
    told = {"trigger": submission.trigger_kind, "trigger_actor": submission.trigger_actor}
    moves.enter(job, at=at, by=by, standing=standing, **told)
    return moves.store(job, at)


def new_job(submission: Submission, policy: Policy) -> Job:
    job = Job(
        org_slug=submission.org_slug,
        project_slug=submission.project_slug,
        trigger_kind=submission.trigger_kind,
        trigger_actor=submission.trigger_actor,
        correlation_id=submission.correlation_id,
        source_address=submission.source_address,
        **submission.spec.columns(),
        **asdict(policy),
    )
    job.root_job_ulid = job.job_ulid
    return job


@verb
def cancel(
    *,
    job_ulid: str,
    by: Actor,
    deadline_seconds: float,
    reason: CancelReason = CancelReason.REQUESTED,
    message: str = "",
    now: datetime | None = None,
) -> Outcome:
    """Cancel a waiting job at once; ask the holder of a running one, who has `deadline_seconds` to obey.

    A repeat changes nothing and keeps the first deadline and reason. Raises NotFound, AlreadyFinal."""
    job, at = moves.lock_job(job_ulid, now=now)
    if job.is_final and job.state != JobState.CANCELED:
        raise AlreadyFinal(f"The job is {job.public_status} already.", job_status=job.public_status)
    return cancel_locked(job, at=at, by=by, deadline_seconds=deadline_seconds, reason=reason, message=message)


def cancel_locked(
    job: Job, *, at: datetime, by: Actor, deadline_seconds: float, reason: CancelReason, message: str = ""
) -> Outcome:
    """Cancel a locked job, inside the verb that locked it. Does nothing to one that has ended."""
    if job.is_final:
        return Outcome(job)
    if job.cancel_requested_at is not None:
        return Outcome(job, accepted=True)
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = at, reason, str(by)
    job.cancel_message = message
    if job.state in WAITING:
        moves.cancel_now(job, at=at, by=by, message=message or None)
        return Outcome(moves.store(job, at))
    job.cancel_deadline_at = at + timedelta(seconds=deadline_seconds)
    moves.note(job, "job.cancel_requested", at=at, by=by, reason=str(reason), message=message or None)
    return Outcome(moves.store(job, at), accepted=True)


@verb
def retry(
    *, job_ulid: str, by: Actor, reason: str, once: Repeatable | None = None, now: datetime | None = None
) -> Outcome:
    """Queue a new attempt of a job that failed or was canceled, with the whole count of automatic retries again.

    Raises NotFound, NotFinal, AlreadyFinal (it succeeded: a success is not retried), AlreadyRetried."""
    job, at = moves.lock_job(job_ulid, now=now)
    if once and (first := once.known()):
        return Outcome(Job.objects.get(job_ulid=first), replayed=True)
    require_retryable(job)
    successor = moves.follow(job, RetryKind.MANUAL, at=at, by=by, reason=reason)
    if once:
        once.settle(successor.job_ulid, at=at)
    return Outcome(successor)


def require_retryable(job: Job) -> None:
    """Raise NotFinal, AlreadyFinal or AlreadyRetried unless the job ended without success and has no newer attempt."""
    if not job.is_final:
        raise NotFinal("The job has not ended yet; cancel it first.", job_status=job.public_status)
    if job.state == JobState.SUCCEEDED:
        raise AlreadyFinal("The job succeeded; there is nothing to retry.", job_status=job.public_status)
    newer = Job.objects.filter(retry_of_job_ulid=job.job_ulid).values_list("job_ulid", flat=True).first()
    if newer is not None:
        raise AlreadyRetried("A newer attempt exists; retry that one.", newer_job_id=newer)
