"""The only writers of a job's and a lease's state. Every function here expects the job locked, or just made."""

from datetime import datetime, timedelta
from typing import Any

from leases.lanes import lane_of
from leases.models import Lease
from leases.states import LeaseState
from orchestrator.lifecycle import dependencies
from orchestrator.lifecycle.admission import bounded_priority
from orchestrator.lifecycle.dependencies import FREE, Standing
from orchestrator.lifecycle.transaction import ending, written
from runtime_jobs import events
from runtime_jobs.clock import database_time
from runtime_jobs.errors import IllegalMove, NotFound
from runtime_jobs.events import CORE, Actor
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import RetryKind
from runtime_jobs.states import (
    FAILURE_CLASSES,
    FINAL,
    RETRIED_AUTOMATICALLY,
    CancelReason,
    FailureReason,
    JobState,
    may_move,
)

MESSAGE_LIMIT = 4096
LIMIT_IS_GONE = "The organization has no emergency limit any more."

# What a new attempt takes over from the row it follows. Everything else starts afresh.
COPIED = (
    *("org_slug", "project_slug", "source_kind", "repo_url", "repo_owner", "repo_name", "git_ref", "git_commit"),
    *("pull_request_number", "trigger_kind", "trigger_actor", "working_directory", "command_json", "timeout_seconds"),
    *("allow_network", "allow_exec", "job_type", "spec", "priority", "pool", "requirements", "payload_digest"),
    *("correlation_id", "source_address", "max_requeues", "automatic_retries", "needs_ingest"),
    *("complete_beats_cancel", "lease_ttl_seconds", "heartbeat_interval_seconds", "acknowledge_within_seconds"),
    *("least_isolation", "root_job_ulid", "batch_id", "awaited", "concurrency_key", "limited_by_address"),
)
# What tells jobs apart to the scheduler; see `leases.lanes.lane_of`.
ALIKE = (
    *("pool", "priority", "org_slug", "project_slug", "job_type", "least_isolation", "requirements"),
    *("concurrency_key", "limited_by_address", "source_address"),
)


def lock_job(job_ulid: str, *, now: datetime | None = None) -> tuple[Job, datetime]:
    """Lock a job and read the database's clock after the wait. Raises NotFound."""
    job = Job.objects.locked().filter(job_ulid=job_ulid).first()
    if job is None:
        raise NotFound("There is no such job.")
    return job, now or database_time()


def move(
    job: Job, target: str, *, kind: str, at: datetime, by: Actor, worker_id: str | None = None, **payload: Any
) -> None:
    """Change the state and write the event that says so. The caller stores the job."""
    if not may_move(job.state, target):
        raise IllegalMove(f"A job that is {job.state} cannot become {target}.")
    source, job.state = job.state, JobState(target)
    _stamp(job, at)
    note(job, kind, at=at, by=by, worker_id=worker_id, from_state=source, to_state=target, **payload)


def note(job: Job, kind: str, *, at: datetime, by: Actor, worker_id: str | None = None, **payload: Any) -> None:
    """Add an event to the trail, which by itself changes no state. The caller stores the job."""
    written().events.append(events.next_of(job, kind, at=at, by=by, worker_id=worker_id, **payload))


def _stamp(job: Job, at: datetime) -> None:
    job.phase_at = at
    if job.state == JobState.QUEUED:
        job.started_at = job.executing_at = None
    elif job.state == JobState.STARTING:
        job.started_at = at
    elif job.state == JobState.EXECUTING:
        job.executing_at = at
    if job.state in FINAL:
        job.finished_at = at
        ending().ended += dependencies.note_end(job)


def store(job: Job, at: datetime) -> Job:
    """Let the job be written back when the verb ends; it is done once, however often this is called."""
    job.updated_at = at
    written().change(job)
    return job


def store_lease(lease: Lease) -> None:
    written().change(lease)


def enter(job: Job, *, at: datetime, by: Actor, standing: Standing = FREE, **payload: Any) -> Job:
    """Let a new job in with its first event: queued, or blocked while what it depends on has not ended, or canceled
    at once where one of those did not succeed. It is written, and gets its key, when the verb ends."""
    job.state = JobState.QUEUED if standing.is_met else JobState.BLOCKED
    job.created_at = job.phase_at = job.updated_at = at
    job.lane_id = _lane_of(job)
    ending().arrived(job.org_slug)
    written().add(job)
    written().beside += dependencies.bind(job, standing)
    kind, needs = "job.queued" if standing.is_met else "job.blocked", list(standing.roots) or None
    note(job, kind, at=at, by=by, to_state=job.state, depends_on=needs, **payload)
    if standing.failed:
        abandon(job, standing.failed, at=at)
    return job


def _lane_of(job: Job) -> int:
    """Asked once a verb for jobs that are alike."""
    lanes, alike = written().lanes, tuple(str(getattr(job, name)) for name in ALIKE)
    if alike not in lanes:
        lanes[alike] = lane_of(job)
    return lanes[alike]


def _into_lane(job: Job) -> None:
    if job.lane_id is not None:
        ending().entered.append((job.pk, job.lane_id, job.created_at))


def unblock(job: Job, *, at: datetime) -> None:
    """All that it depends on has succeeded."""
    _into_lane(job)
    move(job, JobState.QUEUED, kind="job.unblocked", at=at, by=CORE)


def abandon(job: Job, failed: str, *, at: datetime) -> None:
    """End a blocked job that waits in vain. `failed`: what it depends on, and what has not succeeded."""
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = at, CancelReason.DEPENDENCY_FAILED, str(CORE)
    job.cancel_message = f"It depends on {failed}, which did not succeed."
    cancel_now(job, at=at, by=CORE, depends_on=failed)


def leased(job: Job, *, at: datetime, by: Actor) -> None:
    """Write the event of a claim, whose SQL has moved the job already."""
    job.phase_at = at
    note(job, "job.leased", at=at, by=by, worker_id=by.name, from_state=JobState.QUEUED, to_state=JobState.LEASED)


def acknowledge(job: Job, lease: Lease, *, at: datetime, by: Actor, **payload: Any) -> None:
    """Granted becomes active, for its TTL from now even if the window was longer. Does nothing to an active lease."""
    if lease.state != LeaseState.GRANTED:
        return
    lease.state = LeaseState.ACTIVE
    lease.acknowledged_at = lease.last_heartbeat_at = at
    lease.expires_at = at + timedelta(seconds=lease.ttl_seconds)
    move(job, JobState.STARTING, kind="job.started", at=at, by=by, worker_id=lease.worker_id, **payload)


def extend(lease: Lease, at: datetime) -> None:
    """Never earlier than it was: the database's clock may have stepped back."""
    lease.last_heartbeat_at = at
    lease.expires_at = max(lease.expires_at, at + timedelta(seconds=lease.ttl_seconds))


def close(lease: Lease, state: LeaseState, *, reason: str, at: datetime, digest: str | None = None) -> None:
    """End a lease. `digest` is that of the worker's own final message: the same message again is answered the same."""
    lease.state = state
    lease.ended_reason = reason
    lease.completed_at = at
    lease.final_digest = digest
    ending().freed.append(lease.job.pk)
    store_lease(lease)


def requeue(job: Job, *, kind: str, at: datetime, by: Actor, worker_id: str, reason: str) -> None:
    """Back to the queue, as if it had not been claimed."""
    job.progress = None
    ending().arrived(job.org_slug)
    if (priority := bounded_priority(job)) != job.priority:
        change_priority(job, priority, at=at, by=CORE, reason=LIMIT_IS_GONE)
    _into_lane(job)
    move(job, JobState.QUEUED, kind=kind, at=at, by=by, worker_id=worker_id, reason=reason)


def change_priority(job: Job, priority: int, *, at: datetime, by: Actor, reason: str) -> None:
    """Give a waiting job, or one about to wait again, another priority and the lane of that priority.

    The caller stores the job and brings it into its lane."""
    before, job.priority = job.priority, priority
    job.lane_id = _lane_of(job)
    written().relocate(job)
    note(job, "job.prioritized", at=at, by=by, before=before, priority=priority, reason=reason)


def cancel_now(job: Job, *, at: datetime, by: Actor, worker_id: str | None = None, **payload: Any) -> None:
    """End as canceled, for the reason that was given when it was asked for."""
    reason = job.cancel_reason or CancelReason.REQUESTED
    move(job, JobState.CANCELED, kind="job.canceled", at=at, by=by, worker_id=worker_id, reason=reason, **payload)


def fail_or_cancel(
    job: Job,
    reason: FailureReason,
    *,
    message: str,
    at: datetime,
    by: Actor,
    worker_id: str | None = None,
    exit_code: int | None = None,
) -> Job | None:
    """End this attempt in failure and return the automatic retry, if its policy has one left.

    With a cancel requested it ends canceled, and there is no retry."""
    job.exit_code = exit_code
    if job.cancel_requested_at is not None:
        cancel_now(job, at=at, by=by, worker_id=worker_id, instead_of=str(reason))
        return None
    job.failure_reason, job.failure_class = reason, FAILURE_CLASSES[reason]
    job.failure_message = message[:MESSAGE_LIMIT]
    move(job, JobState.FAILED, kind="job.failed", at=at, by=by, worker_id=worker_id, reason=str(reason))
    if reason in RETRIED_AUTOMATICALLY and job.automatic_retries_spent < job.automatic_retries:
        return follow(job, RetryKind.AUTOMATIC, at=at, by=CORE, reason=str(reason))
    return None


def follow(job: Job, kind: RetryKind, *, at: datetime, by: Actor, reason: str, **changed: Any) -> Job:
    """Make the next attempt of an ended job: a new row with the same root that points back.

    `changed`: columns in which it differs from the attempt before."""
    successor = Job(**{name: getattr(job, name) for name in COPIED} | {"priority": bounded_priority(job)} | changed)
    successor.retry_of_job_ulid, successor.retry_kind, successor.attempt = job.job_ulid, kind, job.attempt + 1
    if kind == RetryKind.AUTOMATIC:
        successor.automatic_retries_spent = job.automatic_retries_spent + 1
    # What has run had to wait for nothing any more; what is retried by hand may never have run.
    waits = kind != RetryKind.AUTOMATIC
    standing = dependencies.held_standing_of(dependencies.roots_for(job)) if waits else FREE
    enter(successor, at=at, by=by, standing=standing, attempt=successor.attempt)
    note(successor, "job.retried", at=at, by=by, retry_of=job.job_ulid, retry=str(kind), reason=reason)
    return store(successor, at)
