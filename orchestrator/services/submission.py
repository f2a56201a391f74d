"""Submits one job. `bulk_submit` and `batches` submit several with the same steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.core.idempotency import IdempotentRequest, replays_before_refusals
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import dependencies, transitions
from orchestrator.services.admission import AdmissionContext, admit, load_context_of_job
from orchestrator.services.concurrency import ConcurrencyGroup, apply_conflict_policy, cancel_new
from orchestrator.services.dependencies import DependencySnapshot, DependencyStatus
from orchestrator.services.transitions import OperationResult
from runtime_jobs.errors import ResourceConflict
from runtime_jobs.events import Actor
from runtime_jobs.models import Job
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.prepared_queries import new_instance
from runtime_jobs.specs import JOB_TYPES, JobPolicy, JobSpec

TRACER = "ptrace"  # the capability of a worker that can trace


@dataclass(frozen=True)
class Submission:
    """A request for one job.

    Attributes:
        org_slug: The organization of the job.
        project_slug: The project of the job.
        spec: The specification: what to execute.
        trigger_kind: The kind of the cause, such as `push`.
        trigger_actor: The name of the person or program that caused the request.
        correlation_id: An id of the caller that links requests.
        source_address: The client's IP address.
        pool: The requested pool, or None for that of the project.
        depends_on: Ids of jobs that must succeed first.
        priority: The requested priority, or None for that of the plan.
        group: The concurrency group of the job: one of its jobs runs at a time.
        automatic_retries: None for the setting of the job type, 0 for no automatic retry.
        job_ulid: The id of the job, which the client has chosen, or None for a new one.
        first_event_facts: Further details of the first event, such as the job of which the new one is a rerun.
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
    automatic_retries: int | None = None
    job_ulid: str | None = None
    first_event_facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def project_key(self) -> tuple[str, str]:
        """The slugs of organization and project."""
        return self.org_slug, self.project_slug


@operation(optimistic=True, confirm_refusals=False, retry_unique_violation="job_ulid")
def submit(
    uow: UnitOfWork,
    submission: Submission,
    *,
    policy: JobPolicy,
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> OperationResult:
    """Queue a new job.

    Args:
        submission: The request.
        policy: The policy of the job type: retries, time to live of the lease, and more.
        default_pool: The slug of the pool of projects that name none.
        actor: The client.
        idempotency: The idempotency key. The same request again returns the first job.

    Raises:
        LifecycleError: Any error of `admit_job`.
        IdempotencyConflict: The key was used with another request.
        ResourceConflict: Another job has the id that the client has chosen.
    """
    return submit_within(
        uow,
        submission,
        policy=policy,
        default_pool=default_pool,
        actor=actor,
        idempotency=idempotency,
        now=now,
    )


def submit_within(
    uow: UnitOfWork,
    submission: Submission,
    *,
    policy: JobPolicy,
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> OperationResult:
    """Queue a new job within another operation. Arguments, result and errors are those of `submit`."""
    if submission.depends_on or submission.group:
        uow.require_transaction()  # to lock other jobs
    if submission.job_ulid is not None:
        uow.require_transaction()  # a repetition with the same idempotency key is not a conflict
    job = new_job(submission, policy)
    context = load_context_of_job(uow, job, priority=submission.priority, default_pool=default_pool)
    now = now or context.now
    if idempotency and (first := _first_result(uow, idempotency, job, submission, now)) is not None:
        return OperationResult(Job.objects.get(job_ulid=first), replayed=True)
    if submission.job_ulid is not None and Job.objects.filter(job_ulid=submission.job_ulid).exists():
        raise ResourceConflict(f"The id of the job is in use: {submission.job_ulid}. Send another one, or none.")
    snapshot = dependencies.lock_dependencies(submission.depends_on, org_slugs=[submission.org_slug])
    with replays_before_refusals(uow):
        status = admit_job(job, submission, context, snapshot)
    return OperationResult(enqueue_job(uow, job, submission, status, now=now, actor=actor))


def _first_result(
    uow: UnitOfWork, idempotency: IdempotentRequest, job: Job, submission: Submission, now: datetime
) -> str | None:
    """Bind the idempotency key to a new job, or return the id of the job to which it is bound already."""
    if submission.job_ulid is not None:
        return idempotency.bind_chosen(job.job_ulid, now=now)
    first = idempotency.bind_with(uow, job.job_ulid, now=now)
    return None if first == job.job_ulid else first


def new_job(submission: Submission, policy: JobPolicy) -> Job:
    """Return a new job with the fields of the request and of its policy, not yet admitted."""
    spec = submission.spec
    columns = spec.columns() | vars(policy) | JOB_TYPES[spec.job_type].own_terms(spec)
    columns["org_slug"] = submission.org_slug
    columns["project_slug"] = submission.project_slug
    columns["trigger_kind"] = submission.trigger_kind
    columns["trigger_actor"] = submission.trigger_actor
    columns["correlation_id"] = submission.correlation_id
    columns["source_address"] = submission.source_address
    columns["concurrency_key"] = submission.group.key if submission.group else ""
    if submission.job_ulid is not None:
        columns["job_ulid"] = submission.job_ulid
    job = new_instance(Job, columns)
    if submission.automatic_retries is not None:
        job.automatic_retries = submission.automatic_retries
    job.root_job_ulid = job.job_ulid
    return job


def admit_job(
    job: Job,
    submission: Submission,
    context: AdmissionContext,
    snapshot: DependencySnapshot,
    *,
    limited: bool = True,
) -> DependencyStatus:
    """Check whether a new job is allowed, and set its scheduling fields.

    Args:
        job: The new job.
        submission: The request.
        context: The tenants and pools that were read for this call.
        snapshot: The dependencies that were locked for this call.
        limited: Whether the organization's submit quota may refuse the job. It is counted in any case.

    Returns:
        The status of the job's dependencies.

    Raises:
        LifecycleError: Any error of `admit`.
        InvalidDependency: A dependency is not a job of the organization.
        QueueFull: The organization has as many waiting jobs as its plan allows.
        SubmitRateExceeded: The organization submits faster than its plan allows.
    """
    placement = admit(
        org_slug=submission.org_slug,
        project_slug=submission.project_slug,
        spec=submission.spec,
        context=context,
        pool=submission.pool,
        priority=submission.priority,
    )
    job.priority, job.pool, job.least_isolation = placement.priority, placement.pool, placement.least_isolation
    job.limited_by_address = placement.limited_by_address
    job.trace = placement.trace
    levels = list(JobTrace)  # the least comes first
    if levels.index(placement.trace) > levels.index(JOB_TYPES[job.job_type].trace_levels[0]):
        job.requirements = [*job.requirements, TRACER]
    if placement.pack is not None:
        job.spec = job.spec | {"plan": placement.pack.plan}
        job.allow_network = placement.pack.plan.get("allow_network", False)
    status = snapshot.get_status(submission.depends_on, org_slug=job.org_slug)
    if limited:  # last: a job that is refused for another reason uses no quota
        context.reserve_quota(job.org_slug)
    return status


def enqueue_job(
    uow: UnitOfWork, job: Job, submission: Submission, status: DependencyStatus, *, now: datetime, actor: Actor
) -> Job:
    """Queue an admitted job and apply the conflict policy of its concurrency group."""
    group = submission.group
    is_dropped = group is not None and apply_conflict_policy(uow, job, group, now=now, actor=actor)
    facts: dict[str, Any] = {"trigger": submission.trigger_kind, "trigger_actor": submission.trigger_actor}
    facts |= submission.first_event_facts
    transitions.enqueue(uow, job, now=now, actor=actor, dependency_status=status, **facts)
    if is_dropped:
        return cancel_new(uow, job, now=now, actor=actor)
    return transitions.mark_changed(uow, job, now)
