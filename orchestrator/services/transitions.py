"""The only writers of a job's and a lease's state. Every function here expects the job locked, or just made."""

from datetime import datetime, timedelta
from typing import Any

from leases.models import Lease
from leases.scheduling.lanes import get_lane
from leases.states import LeaseState
from orchestrator.services import dependencies
from orchestrator.services.admission import bounded_priority
from orchestrator.services.dependencies import NO_DEPENDENCIES, DependencyStatus
from orchestrator.services.unit_of_work.operation import current_unit_of_work, lane_updates
from runtime_jobs import events
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import InvalidTransition, NotFound
from runtime_jobs.events import SYSTEM, Actor
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import RetryKind
from runtime_jobs.states import (
    FAILURE_CLASSES,
    FINAL_STATES,
    RETRIED_AUTOMATICALLY,
    CancelReason,
    FailureReason,
    JobState,
    can_transition,
)

MESSAGE_LIMIT = 4096
LIMIT_IS_GONE = "The organization has no emergency limit any more."

# What a new attempt takes over from the row it follows. Everything else starts afresh.
RETRY_FIELDS = (
    *("org_slug", "project_slug", "source_kind", "repo_url", "repo_owner", "repo_name", "git_ref", "git_commit"),
    *("pull_request_number", "trigger_kind", "trigger_actor", "working_directory", "command_json", "timeout_seconds"),
    *("allow_network", "allow_exec", "job_type", "spec", "priority", "pool", "requirements", "payload_digest"),
    *("correlation_id", "source_address", "max_requeues", "automatic_retries", "needs_ingest"),
    *("complete_beats_cancel", "lease_ttl_seconds", "heartbeat_interval_seconds", "acknowledge_within_seconds"),
    *("least_isolation", "root_job_ulid", "batch_id", "awaited", "concurrency_key", "limited_by_address"),
)
# What tells jobs apart to the scheduler; see `leases.scheduling.lanes.get_lane`.
LANE_KEY_FIELDS = (
    *("pool", "priority", "org_slug", "project_slug", "job_type", "least_isolation", "requirements"),
    *("concurrency_key", "limited_by_address", "source_address"),
)


def lock_job(job_ulid: str, *, now: datetime | None = None) -> tuple[Job, datetime]:
    """Lock a job and read the database's clock after the wait. Raises NotFound."""
    job = Job.objects.locked().filter(job_ulid=job_ulid).first()
    if job is None:
        raise NotFound("There is no such job.")
    return job, now or database_now()


def transition(
    job: Job, target: str, *, kind: str, at: datetime, actor: Actor, worker_id: str | None = None, **payload: Any
) -> None:
    """Change the state and write the event that says so. The caller stores the job."""
    if not can_transition(job.state, target):
        raise InvalidTransition(f"A job that is {job.state} cannot become {target}.")
    source, job.state = job.state, JobState(target)
    _stamp(job, at)
    record_event(job, kind, at=at, actor=actor, worker_id=worker_id, from_state=source, to_state=target, **payload)


def record_event(
    job: Job, kind: str, *, at: datetime, actor: Actor, worker_id: str | None = None, **payload: Any
) -> None:
    """Add an event to the trail, which by itself changes no state. The caller stores the job."""
    current_unit_of_work().events.append(
        events.build_event(job, kind, at=at, actor=actor, worker_id=worker_id, **payload)
    )


def _stamp(job: Job, at: datetime) -> None:
    job.phase_at = at
    if job.state == JobState.QUEUED:
        job.started_at = job.executing_at = None
    elif job.state == JobState.STARTING:
        job.started_at = at
    elif job.state == JobState.EXECUTING:
        job.executing_at = at
    if job.state in FINAL_STATES:
        job.finished_at = at
        lane_updates().ended += dependencies.record_completion(job)


def mark_dirty(job: Job, at: datetime) -> Job:
    """Let the job be written back when the verb ends; it is done once, however often this is called."""
    job.updated_at = at
    current_unit_of_work().change(job)
    return job


def store_lease(lease: Lease) -> None:
    current_unit_of_work().change(lease)


def enqueue(
    job: Job, *, at: datetime, actor: Actor, standing: DependencyStatus = NO_DEPENDENCIES, **payload: Any
) -> Job:
    """Let a new job in with its first event: queued, or blocked while what it depends on has not ended, or canceled
    at once where one of those did not succeed. It is written, and gets its key, when the verb ends."""
    job.state = JobState.QUEUED if standing.is_met else JobState.BLOCKED
    job.created_at = job.phase_at = job.updated_at = at
    job.lane_id = _lane_of(job)
    lane_updates().arrived(job.org_slug)
    current_unit_of_work().add(job)
    current_unit_of_work().beside += dependencies.build_edges(job, standing)
    kind, needs = "job.queued" if standing.is_met else "job.blocked", list(standing.roots) or None
    record_event(job, kind, at=at, actor=actor, to_state=job.state, depends_on=needs, **payload)
    if standing.failed:
        cancel_for_dependency(job, standing.failed, at=at)
    return job


def _lane_of(job: Job) -> int:
    """Asked once a verb for jobs that are alike."""
    lanes, alike = current_unit_of_work().lanes, tuple(str(getattr(job, name)) for name in LANE_KEY_FIELDS)
    if alike not in lanes:
        lanes[alike] = get_lane(job)
    return lanes[alike]


def _into_lane(job: Job) -> None:
    if job.lane_id is not None:
        lane_updates().entered.append((job.pk, job.lane_id, job.created_at))


def unblock(job: Job, *, at: datetime) -> None:
    """All that it depends on has succeeded."""
    _into_lane(job)
    transition(job, JobState.QUEUED, kind="job.unblocked", at=at, actor=SYSTEM)


def cancel_for_dependency(job: Job, failed: str, *, at: datetime) -> None:
    """End a blocked job that waits in vain. `failed`: what it depends on, and what has not succeeded."""
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = at, CancelReason.DEPENDENCY_FAILED, str(SYSTEM)
    job.cancel_message = f"It depends on {failed}, which did not succeed."
    cancel_now(job, at=at, actor=SYSTEM, depends_on=failed)


def leased(job: Job, *, at: datetime, actor: Actor) -> None:
    """Write the event of a claim, whose SQL has moved the job already."""
    job.phase_at = at
    record_event(
        job,
        "job.leased",
        at=at,
        actor=actor,
        worker_id=actor.name,
        from_state=JobState.QUEUED,
        to_state=JobState.LEASED,
    )


def acknowledge(job: Job, lease: Lease, *, at: datetime, actor: Actor, **payload: Any) -> None:
    """Granted becomes active, for its TTL from now even if the window was longer. Does nothing to an active lease."""
    if lease.state != LeaseState.GRANTED:
        return
    lease.state = LeaseState.ACTIVE
    lease.acknowledged_at = lease.last_heartbeat_at = at
    lease.expires_at = at + timedelta(seconds=lease.ttl_seconds)
    transition(job, JobState.STARTING, kind="job.started", at=at, actor=actor, worker_id=lease.worker_id, **payload)


def extend_lease(lease: Lease, at: datetime) -> None:
    """Never earlier than it was: the database's clock may have stepped back."""
    lease.last_heartbeat_at = at
    lease.expires_at = max(lease.expires_at, at + timedelta(seconds=lease.ttl_seconds))


def end_lease(lease: Lease, state: LeaseState, *, reason: str, at: datetime, digest: str | None = None) -> None:
    """End a lease. `digest` is that of the worker's own final message: the same message again is answered the same."""
    lease.state = state
    lease.ended_reason = reason
    lease.completed_at = at
    lease.final_digest = digest
    lane_updates().freed.append(lease.job.pk)
    store_lease(lease)


def requeue(job: Job, *, kind: str, at: datetime, actor: Actor, worker_id: str, reason: str) -> None:
    """Back to the queue, as if it had not been claimed."""
    job.progress = None
    lane_updates().arrived(job.org_slug)
    if (priority := bounded_priority(job)) != job.priority:
        change_priority(job, priority, at=at, actor=SYSTEM, reason=LIMIT_IS_GONE)
    _into_lane(job)
    transition(job, JobState.QUEUED, kind=kind, at=at, actor=actor, worker_id=worker_id, reason=reason)


def change_priority(job: Job, priority: int, *, at: datetime, actor: Actor, reason: str) -> None:
    """Give a waiting job, or one about to wait again, another priority and the lane of that priority.

    The caller stores the job and brings it into its lane."""
    before, job.priority = job.priority, priority
    job.lane_id = _lane_of(job)
    current_unit_of_work().relocate(job)
    record_event(job, "job.prioritized", at=at, actor=actor, before=before, priority=priority, reason=reason)


def cancel_now(job: Job, *, at: datetime, actor: Actor, worker_id: str | None = None, **payload: Any) -> None:
    """End as canceled, for the reason that was given when it was asked for."""
    reason = job.cancel_reason or CancelReason.REQUESTED
    transition(
        job, JobState.CANCELED, kind="job.canceled", at=at, actor=actor, worker_id=worker_id, reason=reason, **payload
    )


def fail_or_cancel(
    job: Job,
    reason: FailureReason,
    *,
    message: str,
    at: datetime,
    actor: Actor,
    worker_id: str | None = None,
    exit_code: int | None = None,
) -> Job | None:
    """End this attempt in failure and return the automatic retry, if its policy has one left.

    With a cancel requested it ends canceled, and there is no retry."""
    job.exit_code = exit_code
    if job.cancel_requested_at is not None:
        cancel_now(job, at=at, actor=actor, worker_id=worker_id, instead_of=str(reason))
        return None
    job.failure_reason, job.failure_class = reason, FAILURE_CLASSES[reason]
    job.failure_message = message[:MESSAGE_LIMIT]
    transition(job, JobState.FAILED, kind="job.failed", at=at, actor=actor, worker_id=worker_id, reason=str(reason))
    if reason in RETRIED_AUTOMATICALLY and job.automatic_retries_spent < job.automatic_retries:
        return create_retry(job, RetryKind.AUTOMATIC, at=at, actor=SYSTEM, reason=str(reason))
    return None


def create_retry(job: Job, kind: RetryKind, *, at: datetime, actor: Actor, reason: str, **changed: Any) -> Job:
    """Make the next attempt of an ended job: a new row with the same root that points back.

    `changed`: columns in which it differs from the attempt before."""
    successor = Job(
        **{name: getattr(job, name) for name in RETRY_FIELDS} | {"priority": bounded_priority(job)} | changed
    )
    successor.retry_of_job_ulid, successor.retry_kind, successor.attempt = job.job_ulid, kind, job.attempt + 1
    if kind == RetryKind.AUTOMATIC:
        successor.automatic_retries_spent = job.automatic_retries_spent + 1
    # What has run had to wait for nothing any more; what is retried by hand may never have run.
    waits = kind != RetryKind.AUTOMATIC
    standing = dependencies.held_standing_of(dependencies.roots_for(job)) if waits else NO_DEPENDENCIES
    enqueue(successor, at=at, actor=actor, standing=standing, attempt=successor.attempt)
    record_event(successor, "job.retried", at=at, actor=actor, retry_of=job.job_ulid, retry=str(kind), reason=reason)
    return mark_dirty(successor, at)
