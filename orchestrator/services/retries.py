"""Queues a new attempt of a job that failed or was canceled: to execute it again, or to upload its run again."""

from datetime import datetime
from typing import Any

from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.admission import readmit
from orchestrator.services.late_results import fail_lost
from orchestrator.services.transitions import OperationResult
from runtime_jobs.errors import AlreadyFinal, AlreadyRetried, NotFinal, NotFound, NotRetryable
from runtime_jobs.events import Actor
from runtime_jobs.models import Job, UnsentRun
from runtime_jobs.models.jobs import RetryKind
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import JobState

RESEND = "resend"  # the capability of a worker that can upload a stored run


@operation
def retry(
    uow: UnitOfWork,
    *,
    job_ulid: str,
    actor: Actor,
    reason: str,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> OperationResult:
    """Queue a new attempt of a job. It has all automatic retries again. A lost job fails first.

    The new attempt executes the job, also after an attempt that only uploaded a run: see `reupload`.

    A client's retry counts as a submit. An operator's retry is not refused by the quota.

    Args:
        job_ulid: The newest attempt of the job.
        actor: The client or operator.
        reason: Recorded in the event.
        idempotency: The idempotency key. The same request again returns the first new attempt.

    Raises:
        NotFound: The job does not exist.
        NotRetryable: Jobs of this type have no further attempts.
        NotFinal: The job has not ended.
        AlreadyFinal: The job succeeded.
        AlreadyRetried: The job has a newer attempt.
        LifecycleError: Any error of `admit`: the new attempt must pass the rules of a new job.
        QueueFull: The organization has as many waiting jobs as its plan allows.
        SubmitRateExceeded: The organization submits faster than its plan allows.
        IdempotencyConflict: The key was used with another request.
    """
    job, now = transitions.lock_job(job_ulid, now=now)
    if idempotency and (first := idempotency.lookup()):
        return OperationResult(Job.objects.get(job_ulid=first), replayed=True)
    if job.state == JobState.LOST:
        fail_lost(uow, job, now=now, actor=actor)
        transitions.mark_changed(uow, job, now)
    require_retryable(job)
    changes = readmit(uow, job, limited=is_limited(actor)) | _execution_terms(job)
    successor = transitions.create_retry(uow, job, RetryKind.MANUAL, now=now, actor=actor, reason=reason, **changes)
    if idempotency:
        idempotency.bind(successor.job_ulid, now=now)
    return OperationResult(successor)


@operation
def reupload(
    uow: UnitOfWork, *, job_ulid: str, actor: Actor, reason: str, now: datetime | None = None
) -> OperationResult:
    """Queue a new attempt that only uploads the run of a failed one, without executing its command.

    Args:
        job_ulid: A job whose execution succeeded and whose upload failed.
        actor: The operator.
        reason: Recorded in the event.

    Raises:
        NotFound: The job does not exist, or has no run that waits for an upload.
        NotRetryable: Jobs of this type have no further attempts.
        NotFinal: The job has not ended.
        AlreadyFinal: The job succeeded.
        AlreadyRetried: The job has a newer attempt.
        LifecycleError: Any error of `admit`.
    """
    job, now = transitions.lock_job(job_ulid, now=now)
    require_retryable(job)
    unsent = UnsentRun.objects.filter(job=job).first()
    if unsent is None:
        raise NotFound("The job has no run that waits for an upload.")
    # No automatic retry: it would be a new row without the run, and would execute the command.
    changes = readmit(uow, job, limited=False) | {
        "requirements": sorted({*job.requirements, RESEND}),
        "automatic_retries": 0,
    }
    successor = transitions.create_retry(uow, job, RetryKind.MANUAL, now=now, actor=actor, reason=reason, **changes)
    uow.extra_rows.append(UnsentRun(job=successor, payload=unsent.payload, created_at=now))
    return OperationResult(successor)


def _execution_terms(job: Job) -> dict[str, Any]:
    """Return the fields in which an attempt that executes the job differs from one that only uploads its run."""
    if RESEND not in job.requirements:
        return {}
    executed = Job.objects.filter(root_job_ulid=job.root_job_ulid, attempt__lt=job.attempt)
    executed = executed.exclude(requirements__contains=[RESEND]).order_by("-attempt")
    terms = executed.values("requirements", "automatic_retries").first()
    return dict(terms) if terms else {}


def is_limited(actor: Actor) -> bool:
    """Report whether submit quotas may refuse this actor. Requests of operators are never refused by a quota."""
    return actor.kind == "client"


def require_retryable(job: Job) -> None:
    """Check that the type has further attempts, and that the job ended without success and has no newer one.

    Raises:
        NotRetryable: Jobs of this type have no further attempts.
        NotFinal: The job has not ended.
        AlreadyFinal: The job succeeded.
        AlreadyRetried: The job has a newer attempt.
    """
    if not JOB_TYPES[job.job_type].is_retryable:
        raise NotRetryable(f"Jobs of type {job.job_type} cannot be retried. Submit a new run.")
    if not job.is_final:
        raise NotFinal(
            f"The job has not ended: it is {job.public_status}. Cancel it first.",
            job_status=job.public_status,
        )
    if job.state == JobState.SUCCEEDED:
        raise AlreadyFinal("The job succeeded and cannot be retried.", job_status=job.public_status)
    newer = Job.objects.filter(retry_of_job_ulid=job.job_ulid).values_list("job_ulid", flat=True).first()
    if newer is not None:
        raise AlreadyRetried(f"The job has a newer attempt. Retry {newer}.", newer_job_id=newer)
