"""The only code that changes the state of a job or a lease.

Every function expects the job to be locked by this transaction, or to be new. The caller marks the job as changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from leases.models import Lease
from leases.scheduling.lanes import LaneKey, find_lanes, get_lane
from leases.states import LeaseState
from orchestrator.core import work_signals
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.incidents import operations
from orchestrator.services import dependencies, metering
from orchestrator.services.admission import bounded_priority
from orchestrator.services.dependencies import NO_DEPENDENCIES, DependencyStatus
from orchestrator.services.signals import job_ended
from runtime_jobs import events
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import InvalidTransition, NotFound
from runtime_jobs.events import SYSTEM, Actor
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import RetryKind
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.states import (
    FAILURE_CLASSES,
    FINAL_STATES,
    RETRIED_AUTOMATICALLY,
    RETRIED_ELSEWHERE,
    CancelReason,
    FailureReason,
    JobState,
    can_transition,
)

MAX_MESSAGE_LENGTH = 4096
EMERGENCY_LIMIT_REMOVED = "The organization has no emergency limit any more."

# The fields that a new attempt copies from the attempt before. All others start with their defaults.
RETRY_FIELDS = (
    *("org_slug", "project_slug", "source_kind", "repo_url", "repo_owner", "repo_name", "git_ref", "git_commit"),
    *("pull_request_number", "trigger_kind", "trigger_actor", "working_directory", "command_json", "timeout_seconds"),
    *("allow_network", "allow_exec", "job_type", "spec", "priority", "pool", "requirements", "payload_digest"),
    *("correlation_id", "source_address", "max_requeues", "automatic_retries", "needs_ingest"),
    *("complete_beats_cancel", "lease_ttl_seconds", "heartbeat_interval_seconds", "acknowledge_within_seconds"),
    *("late_result_seconds", "needs_processing", "timeout_grace_seconds", "is_metered"),
    *("least_isolation", "trace", "root_job_ulid", "batch_id", "awaited", "concurrency_key", "limited_by_address"),
    "replay_of_job_ulid",
)


@dataclass(frozen=True)
class OperationResult:
    """A job after an operation.

    Attributes:
        job: The job.
        replayed: An earlier request with the same idempotency key made the job.
        accepted: The operation was requested and takes effect later.
    """

    job: Job
    replayed: bool = False
    accepted: bool = False


def lock_job(job_ulid: str, *, now: datetime | None = None) -> tuple[Job, datetime]:
    """Lock a job and read the database's clock after the wait.

    Returns:
        The job, and the time of the database, or `now` if it is given.

    Raises:
        NotFound: The job does not exist.
    """
    job = Job.objects.locked().filter(job_ulid=job_ulid).first()
    if job is None:
        raise NotFound("The job does not exist.")
    return job, now or database_now()


def transition(
    uow: UnitOfWork,
    job: Job,
    target: str,
    *,
    kind: str,
    now: datetime,
    actor: Actor,
    worker_id: str | None = None,
    **payload: Any,
) -> None:
    """Change the state of a job and record the event.

    Args:
        job: A locked or new job. The caller marks it as changed.
        target: The new state.
        kind: The type of the event, such as `job.started`.
        now: Timestamp of the change.
        actor: The cause of the change.
        worker_id: The worker that is concerned, if any.
        payload: More values of the event.

    Raises:
        InvalidTransition: The job cannot reach the new state from its current one.
    """
    if not can_transition(job.state, target):
        raise InvalidTransition(f"This transition is not allowed: from {job.state} to {target}.")
    source, job.state = job.state, JobState(target)
    job.phase_at = now
    if source == JobState.LOST and target != JobState.FAILED:
        job.failure_reason = job.failure_class = job.failure_message = None
    if job.state == JobState.QUEUED:
        job.started_at = job.executing_at = None
    elif job.state == JobState.STARTING:
        job.started_at = now
    elif job.state == JobState.EXECUTING:
        job.executing_at = now
    elif job.state in FINAL_STATES:
        job.finished_at = now
        received: list[tuple[Any, Any]] = job_ended.send(Job, uow=uow, job=job, now=now)
        for _, values in received:
            payload |= values or {}
    record_event(
        uow, job, kind, now=now, actor=actor, worker_id=worker_id, from_state=source, to_state=target, **payload
    )


def record_event(
    uow: UnitOfWork,
    job: Job,
    kind: str,
    *,
    now: datetime,
    actor: Actor,
    worker_id: str | None = None,
    **payload: Any,
) -> None:
    """Add an event to the job's history. The state stays; see `transition`."""
    uow.events.append(events.build_event(job, kind, created_at=now, actor=actor, worker_id=worker_id, **payload))


def mark_changed(uow: UnitOfWork, job: Job, now: datetime) -> Job:
    """Update the row of the job when the operation ends, and return the job."""
    job.updated_at = now
    uow.change(job)
    return job


def enqueue(
    uow: UnitOfWork,
    job: Job,
    *,
    now: datetime,
    actor: Actor,
    dependency_status: DependencyStatus = NO_DEPENDENCIES,
    is_held: bool = False,
    **payload: Any,
) -> Job:
    """Add a new job with its first event.

    The job is queued if its dependencies are met, canceled if one of them has failed, and blocked otherwise. The row
    is inserted, and gets its key, when the operation ends.

    Args:
        job: The new job.
        now: Timestamp of the submit.
        actor: The client.
        dependency_status: The status of the job's dependencies.
        is_held: Block the job although its dependencies are met. The caller unblocks it later.
        payload: More values of the event.

    Returns:
        The job.
    """
    is_met = dependency_status.is_met and not is_held
    job.state = JobState.QUEUED if is_met else JobState.BLOCKED
    job.created_at = job.phase_at = job.updated_at = now
    job.lane_id = _lane_id(uow, job)
    uow.lane_updates.arrived(job.org_slug)
    uow.add(job)
    uow.extra_rows += dependencies.build_edges(job, dependency_status)
    kind, depends_on = "job.queued" if is_met else "job.blocked", list(dependency_status.roots) or None
    record_event(uow, job, kind, now=now, actor=actor, to_state=job.state, depends_on=depends_on, **payload)
    if dependency_status.failed:
        cancel_for_dependency(uow, job, dependency_status.failed, now=now)
    return job


def look_up_lanes(uow: UnitOfWork, jobs: Iterable[Job]) -> None:
    """Look up the lanes of several admitted jobs with one statement. `enqueue` creates those that do not exist."""
    keys = {LaneKey.of(job) for job in jobs}.difference(uow.lane_ids)
    if len(keys) > 1 or uow.is_optimistic:
        uow.lane_ids |= find_lanes(keys)


def _lane_id(uow: UnitOfWork, job: Job) -> int:
    """Return the lane of the job, looked up once in an operation for jobs with the same lane key."""
    key = LaneKey.of(job)
    if key not in uow.lane_ids:
        uow.require_transaction()  # to create the lane, most likely
        uow.lane_ids[key] = get_lane(job)
    return uow.lane_ids[key]


def _enter_lane(uow: UnitOfWork, job: Job) -> None:
    if job.lane_id is not None:
        uow.lane_updates.entered.append((job.pk, job.lane_id, job.created_at))
        if "pool" in vars(job):  # batch calls do not read it: a notification is enough for their jobs
            uow.after_commit(work_signals.wake, job.pool)


def unblock(uow: UnitOfWork, job: Job, *, now: datetime) -> None:
    """Queue a blocked job whose dependencies have all succeeded."""
    _enter_lane(uow, job)
    transition(uow, job, JobState.QUEUED, kind="job.unblocked", now=now, actor=SYSTEM)


def cancel_for_dependency(uow: UnitOfWork, job: Job, failed: str, *, now: datetime) -> None:
    """Cancel a blocked job because the job `failed`, which it depends on, ended without success."""
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = now, CancelReason.DEPENDENCY_FAILED, str(SYSTEM)
    job.cancel_message = f"It depends on {failed}, which did not succeed."
    cancel_now(uow, job, now=now, actor=SYSTEM, depends_on=failed)


def skip(uow: UnitOfWork, job: Job, *, now: datetime) -> None:
    """End a blocked job without executing it, because its condition is false."""
    job.cancel_requested_at, job.cancel_reason, job.cancel_actor = now, CancelReason.CONDITION_FALSE, str(SYSTEM)
    job.cancel_message = "Its condition is false."
    cancel_now(uow, job, now=now, actor=SYSTEM)


def acknowledge(uow: UnitOfWork, job: Job, lease: Lease, *, now: datetime, actor: Actor, **payload: Any) -> bool:
    """Activate a granted lease and start its job.

    The lease then lasts for its TTL from `now`, even if the time to acknowledge was longer.

    Returns:
        Whether the lease changed. An active lease stays as it is.
    """
    if lease.state != LeaseState.GRANTED:
        return False
    lease.state = LeaseState.ACTIVE
    lease.acknowledged_at = lease.last_heartbeat_at = now
    lease.expires_at = now + timedelta(seconds=lease.ttl_seconds)
    transition(
        uow, job, JobState.STARTING, kind="job.started", now=now, actor=actor, worker_id=lease.worker_id, **payload
    )
    return True


def extend_lease(lease: Lease, now: datetime) -> None:
    """Extend a lease by its TTL from `now`. It never gets shorter: the database's clock may have stepped back."""
    lease.last_heartbeat_at = now
    lease.expires_at = max(lease.expires_at, now + timedelta(seconds=lease.ttl_seconds))


def end_lease(
    uow: UnitOfWork, lease: Lease, state: LeaseState, *, reason: str, now: datetime, digest: str | None = None
) -> None:
    """End a lease, free the slots of its job, and bill the last minutes of a metered execution.

    A silent worker is billed until its lease expired, however late the expiry is noticed.

    Args:
        lease: An open lease of a locked job.
        state: The final state of the lease.
        reason: The stored reason, such as `completed` or `not_acknowledged`.
        now: Timestamp of the end.
        digest: The digest of the worker's final message, by which a repetition of it is recognized.
    """
    lease.state = state
    lease.ended_reason = reason
    lease.completed_at = now
    lease.final_digest = digest
    uow.lane_updates.freed.append(lease.job.pk)
    uow.change(lease)
    metering.bill(uow, lease.job, until=min(now, lease.expires_at), now=now)


def requeue(uow: UnitOfWork, job: Job, *, kind: str, now: datetime, actor: Actor, worker_id: str, reason: str) -> None:
    """Put a leased job back into its lane, as if it had not been claimed."""
    if job.priority >= EMERGENCY:  # an advisory lock guards the emergency limit until the commit
        uow.require_transaction()
    job.progress = None
    uow.lane_updates.arrived(job.org_slug)
    if (priority := bounded_priority(job)) != job.priority:
        change_priority(uow, job, priority, now=now, actor=SYSTEM, reason=EMERGENCY_LIMIT_REMOVED)
    _enter_lane(uow, job)
    transition(uow, job, JobState.QUEUED, kind=kind, now=now, actor=actor, worker_id=worker_id, reason=reason)


def change_priority(uow: UnitOfWork, job: Job, priority: int, *, now: datetime, actor: Actor, reason: str) -> None:
    """Change the priority of a waiting job, or of one about to wait again, and with it the lane.

    The caller adds the job to the updates of its new lane.
    """
    before, job.priority = job.priority, priority
    job.lane_id = _lane_id(uow, job)
    uow.relocate(job)
    record_event(uow, job, "job.prioritized", now=now, actor=actor, before=before, priority=priority, reason=reason)


def cancel_now(
    uow: UnitOfWork, job: Job, *, now: datetime, actor: Actor, worker_id: str | None = None, **payload: Any
) -> None:
    """End a job as canceled, with the reason that its cancel request gave."""
    if job.state == JobState.LOST:
        payload["instead_of"] = str(job.failure_reason)
    reason = job.cancel_reason or CancelReason.REQUESTED
    transition(
        uow,
        job,
        JobState.CANCELED,
        kind="job.canceled",
        now=now,
        actor=actor,
        worker_id=worker_id,
        reason=reason,
        **payload,
    )


def end_without_result(
    uow: UnitOfWork,
    job: Job,
    reason: FailureReason,
    *,
    message: str,
    now: datetime,
    actor: Actor,
    worker_id: str | None = None,
    exit_code: int | None = None,
) -> None:
    """End the lease's part of a job that has no result: the job is lost while a late result may count.

    A job whose type has no late results fails, and a job whose cancel was requested is canceled: see `fail_or_cancel`,
    which has the same arguments. A lost job keeps the reason, for which it fails when the late window ends.
    """
    if not job.late_result_seconds or job.cancel_requested_at is not None:
        fail_or_cancel(
            uow, job, reason, message=message, now=now, actor=actor, worker_id=worker_id, exit_code=exit_code
        )
        return
    job.exit_code = exit_code
    _set_failure(job, reason, message)
    job.late_result_at = now + timedelta(seconds=job.late_result_seconds)
    terms = {"reason": str(reason), "late_result_seconds": job.late_result_seconds}
    transition(uow, job, JobState.LOST, kind="job.lost", now=now, actor=actor, worker_id=worker_id, **terms)


def fail(
    uow: UnitOfWork,
    job: Job,
    reason: FailureReason,
    *,
    message: str,
    now: datetime,
    actor: Actor,
    worker_id: str | None = None,
) -> None:
    """End a job as failed. The arguments are those of `fail_or_cancel`."""
    _set_failure(job, reason, message)
    transition(
        uow, job, JobState.FAILED, kind="job.failed", now=now, actor=actor, worker_id=worker_id, reason=str(reason)
    )


def _set_failure(job: Job, reason: FailureReason, message: str) -> None:
    job.failure_reason, job.failure_class = reason, FAILURE_CLASSES[reason]
    job.failure_message = message[:MAX_MESSAGE_LENGTH]


def fail_or_cancel(
    uow: UnitOfWork,
    job: Job,
    reason: FailureReason,
    *,
    message: str,
    now: datetime,
    actor: Actor,
    worker_id: str | None = None,
    exit_code: int | None = None,
) -> Job | None:
    """End this attempt as failed, or as canceled if a cancel was requested.

    Args:
        job: A locked job.
        reason: The failure reason.
        message: A text for people, cut to `MAX_MESSAGE_LENGTH` characters.
        now: Timestamp of the end.
        actor: The cause of the end.
        worker_id: The worker that had the job.
        exit_code: The exit code of the command, if it ended.

    Returns:
        The automatic retry, if the reason allows one and the job has one left. A canceled job has none.
    """
    job.exit_code = exit_code
    if job.cancel_requested_at is not None:
        cancel_now(uow, job, now=now, actor=actor, worker_id=worker_id, instead_of=str(reason))
        return None
    fail(uow, job, reason, message=message, now=now, actor=actor, worker_id=worker_id)
    return retry_or_escalate(uow, job, reason, now=now, worker_id=worker_id)


def retry_or_escalate(
    uow: UnitOfWork, job: Job, reason: FailureReason, *, now: datetime, worker_id: str | None = None
) -> Job | None:
    """Create the automatic retry of a failed job, if the reason allows one and the job has one left.

    Otherwise a failure of a worker or of the infrastructure opens an incident. After a failure of its machine, the
    worker is left out for the retry. The server, which executes jobs of a pool of its own, has no other machine.
    """
    elsewhere = reason in RETRIED_ELSEWHERE
    is_retried = reason in RETRIED_AUTOMATICALLY and not (elsewhere and job.pool == settings.EXPORT_POOL)
    if is_retried and job.automatic_retries_spent < job.automatic_retries:
        changes = {"excluded_workers": [*job.excluded_workers, worker_id]} if elsewhere and worker_id else {}
        return create_retry(uow, job, RetryKind.AUTOMATIC, now=now, actor=SYSTEM, reason=str(reason), **changes)
    operations.open_for_failed_job(uow, job, now=now)
    return None


def create_retry(
    uow: UnitOfWork, job: Job, kind: RetryKind, *, now: datetime, actor: Actor, reason: str, **changes: Any
) -> Job:
    """Create the next attempt of a job that has ended: a new row with the same root. Resolves the job's incidents.

    Args:
        job: The attempt before.
        kind: Automatic, or manual for a request of a client or an operator.
        now: Timestamp of the new attempt.
        actor: The cause of the retry.
        reason: Recorded in the event.
        changes: Fields in which the new attempt differs from the one before.

    Returns:
        The new attempt.
    """
    uow.require_transaction()
    copied = {name: getattr(job, name) for name in RETRY_FIELDS}
    successor = Job(**copied | {"priority": bounded_priority(job)} | changes)
    successor.retry_of_job_ulid, successor.retry_kind, successor.attempt = job.job_ulid, kind, job.attempt + 1
    status = NO_DEPENDENCIES
    if kind == RetryKind.AUTOMATIC:  # the attempt before has run, so its dependencies were met
        successor.automatic_retries_spent = job.automatic_retries_spent + 1
    else:
        status = dependencies.lock_status(dependencies.get_roots(job), any_end=dependencies.get_any_end(job))
        operations.resolve_for_retry(job, actor=actor, now=now)
    enqueue(uow, successor, now=now, actor=actor, dependency_status=status, attempt=successor.attempt)
    retried = {"retry_of": job.job_ulid, "retry": str(kind), "reason": reason}
    record_event(uow, successor, "job.retried", now=now, actor=actor, **retried)
    return mark_changed(uow, successor, now)
