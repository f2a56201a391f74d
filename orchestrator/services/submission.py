"""What clients and operators may do to a job: submit, retry. To cancel one is in `cancelling`."""

from dataclasses import dataclass
from datetime import datetime

from orchestrator.services import dependencies, transitions
from orchestrator.services.admission import AdmissionContext, admit, load_context, readmit
from orchestrator.services.concurrency import ConcurrencyGroup, apply_conflict_policy, cancel_new
from orchestrator.services.dependencies import DependencySnapshot, DependencyStatus
from orchestrator.services.idempotency import IdempotentRequest
from orchestrator.services.outcome import OperationResult
from orchestrator.services.unit_of_work.operation import operation
from runtime_jobs.errors import AlreadyFinal, AlreadyRetried, NotFinal
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import RetryKind
from runtime_jobs.policy import JobPolicy
from runtime_jobs.specs import JobSpec
from runtime_jobs.states import JobState


@dataclass(frozen=True)
class Submission:
    """Whose job it is, what it shall do, who asked for it and from where. `pool` None: its project's; `priority` None:
    its plan's. `depends_on`: ids of the jobs that have to succeed first. Of the jobs of one `group` one runs at a time.
    """

    org_slug: str
    project_slug: str
    spec: JobSpec
    trigger_kind: str
    trigger_actor: str | None
    correlation_id: str
    source_address: str | None
    pool: str | None = None
    depends_on: tuple[str, ...] = ()
    priority: int | None = None
    group: ConcurrencyGroup | None = None

    @property
    def home(self) -> tuple[str, str]:
        return self.org_slug, self.project_slug


@operation
def submit(
    submission: Submission,
    *,
    policy: JobPolicy,
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> OperationResult:
    """Queue a new job. With `once`, the same request again returns the first job.

    Raises what `place` raises, and IdempotencyConflict."""
    known = load_context([submission.home], default_pool=default_pool)
    at = now or known.at
    job = new_job(submission, policy)
    if idempotency and (first := idempotency.settle(job.job_ulid, at=at)) != job.job_ulid:
        return OperationResult(Job.objects.get(job_ulid=first), replayed=True)
    outlook = dependencies.lock_dependencies(submission.depends_on, org_slugs=[submission.org_slug])
    standing = admit_job(job, submission, known, outlook)
    return OperationResult(enqueue_job(job, submission, standing, at=at, actor=actor))


def admit_job(
    job: Job, submission: Submission, known: AdmissionContext, outlook: DependencySnapshot, *, limited: bool = True
) -> DependencyStatus:
    """Say where a new job goes, and how what it depends on stands. Unless `limited`, its organization's submit quota
    counts the job and does not refuse it.

    Raises what `admit` does, InvalidDependency, QueueFull and SubmitRateExceeded."""
    found = admit(
        org_slug=submission.org_slug,
        project_slug=submission.project_slug,
        spec=submission.spec,
        known=known,
        pool=submission.pool,
        priority=submission.priority,
    )
    job.priority, job.pool, job.least_isolation = found.priority, found.pool, found.least_isolation
    job.limited_by_address = found.limited_by_address
    standing = outlook.standing_for(submission.depends_on, org_slug=job.org_slug)
    if limited:  # last: a job that is refused for another reason takes no room
        known.take_room(job.org_slug)
    return standing


def enqueue_job(job: Job, submission: Submission, standing: DependencyStatus, *, at: datetime, actor: Actor) -> Job:
    """Let a new job in that has its place, inside the verb that made it."""
    group = submission.group
    dropped = group is not None and apply_conflict_policy(job, group, at=at, actor=actor)
    told = {"trigger": submission.trigger_kind, "trigger_actor": submission.trigger_actor}
    transitions.enqueue(job, at=at, actor=actor, standing=standing, **told)
    return cancel_new(job, at=at, actor=actor) if dropped else transitions.mark_dirty(job, at)


def new_job(submission: Submission, policy: JobPolicy) -> Job:
    job = Job(
        org_slug=submission.org_slug,
        project_slug=submission.project_slug,
        trigger_kind=submission.trigger_kind,
        trigger_actor=submission.trigger_actor,
        correlation_id=submission.correlation_id,
        source_address=submission.source_address,
        concurrency_key=submission.group.key if submission.group else "",
        **submission.spec.columns(),
        **vars(policy),
    )
    job.root_job_ulid = job.job_ulid
    return job


@operation
def retry(
    *,
    job_ulid: str,
    actor: Actor,
    reason: str,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> OperationResult:
    """Queue a new attempt of a job that failed or was canceled, with the whole count of automatic retries again.

    A client's retry counts as a submit; an operator's is not refused by its quota.

    Raises:
        NotFound, NotFinal, AlreadyRetried: The job's state does not allow it.
        AlreadyFinal: It succeeded: a success is not retried.
        LifecycleError: What `admit` raises: the new attempt passes the same rules as a new job.
        QueueFull, SubmitRateExceeded: The organization's submit quota is used up.
    """
    job, at = transitions.lock_job(job_ulid, now=now)
    if idempotency and (first := idempotency.known()):
        return OperationResult(Job.objects.get(job_ulid=first), replayed=True)
    require_retryable(job)
    successor = transitions.create_retry(
        job, RetryKind.MANUAL, at=at, actor=actor, reason=reason, **readmit(job, limited=is_limited(actor))
    )
    if idempotency:
        idempotency.settle(successor.job_ulid, at=at)
    return OperationResult(successor)


def is_limited(actor: Actor) -> bool:
    """Whether submit quotas may refuse what this actor asks for: an operator's own acts are never refused."""
    return actor.kind == "client"


def require_retryable(job: Job) -> None:
    """Raise NotFinal, AlreadyFinal or AlreadyRetried unless the job ended without success and has no newer attempt."""
    if not job.is_final:
        raise NotFinal("The job has not ended yet; cancel it first.", job_status=job.public_status)
    if job.state == JobState.SUCCEEDED:
        raise AlreadyFinal("The job succeeded; there is nothing to retry.", job_status=job.public_status)
    newer = Job.objects.filter(retry_of_job_ulid=job.job_ulid).values_list("job_ulid", flat=True).first()
    if newer is not None:
        raise AlreadyRetried("A newer attempt exists; retry that one.", newer_job_id=newer)
